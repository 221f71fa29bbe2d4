#include "format/object_names.h"

#include <gtest/gtest.h>

#include "base/object_name.h"

namespace deltawire::format {
namespace {

TEST(ObjectNames, Spelling) {
  EXPECT_EQ(ManifestName(42), "manifests/00000042.json");
  EXPECT_EQ(UpdateName(42, "ab12", 3), "updates/00000042/ab12-part-00003.safetensors");
  EXPECT_EQ(DigestTableName(42, "ab12"), "updates/00000042/ab12-digests.bin");
  EXPECT_EQ(AnchorDir(40), "anchors/00000040");
  EXPECT_EQ(AnchorManifestName(40), "anchors/00000040/manifest.json");
  EXPECT_EQ(InventoryName("0a"), "inventory-0a.json");
  for (const auto& name : {ManifestName(UINT64_MAX), UpdateName(UINT64_MAX, std::string(64, 'a'), UINT32_MAX),
                           AnchorManifestName(0), InventoryName(std::string(64, 'f'))}) {
    EXPECT_TRUE(IsSafeObjectName(name)) << name;
  }
}

TEST(ObjectNames, NumbersComeBack) {
  for (const uint64_t number :
       {uint64_t{0}, uint64_t{1}, uint64_t{99999999}, uint64_t{100000000}, UINT64_MAX}) {
    EXPECT_EQ(NumberFromManifestName(ManifestName(number)), number);
    EXPECT_EQ(NumberFromAnchorManifestName(AnchorManifestName(number)), number);
  }
}

TEST(ObjectNames, OtherNamesHaveNoNumber) {
  for (const char* name :
       {"", "manifests/", "manifests/.json", "manifests/42.json", "manifests/000000042.json",
        "manifests/0000004a.json", "manifests/00000042.json.tmp", "x/manifests/00000042.json",
        "manifests/-0000042.json", "manifests/99999999999999999999.json", "LATEST",
        "anchors/00000040/manifest.json"}) {
    EXPECT_FALSE(NumberFromManifestName(name)) << name;
  }
  EXPECT_FALSE(NumberFromAnchorManifestName("anchors/00000040/config.json"));
  EXPECT_FALSE(NumberFromAnchorManifestName("anchors/40/manifest.json"));
}

}  // namespace
}  // namespace deltawire::format
