#include "format/other_version.h"

#include <gtest/gtest.h>

#include <string>

#include "format/block_table.h"
#include "format/digests.h"
#include "format/inventory.h"
#include "format/manifest.h"
#include "format/open_patch.h"
#include "format/test_data.h"
#include "format/update_file.h"

namespace deltawire::format {
namespace {

TEST(OtherVersion, NamesBothVersionsAndTheRemedy) {
  const Error later = OtherVersion("digest table", 12, 1);
  EXPECT_EQ(later.code(), Code::kUnsupported);
  EXPECT_EQ(later.message(),
            "digest table: format version 12; this build reads version 1; use a build that knows it");
  EXPECT_NE(OtherVersion("update", "0", 1).message().find("write it again"), std::string::npos);
  EXPECT_NE(OtherVersion("update", "1\n", 1).message().find("version \"1\\x0a\""), std::string::npos);
  EXPECT_NE(OtherVersion("update", "", 1).message().find("version \"\""), std::string::npos);
}

// Each format, with nothing else right: the version is looked at before anything else is believed.
TEST(OtherVersion, IsSeenBeforeAnyOtherContradiction) {
  for (const uint8_t version : {0, 2, 255}) {
    const std::string found = std::to_string(version);
    const auto refused = [&](const auto& parsed) {
      ASSERT_FALSE(parsed);
      EXPECT_EQ(parsed.error().code(), Code::kUnsupported) << parsed.error().message();
      EXPECT_NE(parsed.error().message().find("version " + found + "; this build reads version 1"),
                std::string::npos)
          << parsed.error().message();
    };
    const Bytes table = {'D', 'W', 'B', 'T', version, 0xff};
    refused(ParseBlockTable(table, ExampleInventory(), 0));
    const Bytes digests = {'D', 'W', 'D', 'T', version, 0, 0, 0, 9};
    refused(ParseDigestTable(digests, 1));
    const auto json = [&](std::string_view name) {
      return R"({"format":"deltawire.)" + std::string(name) + R"(","format_version":)" + found + "}";
    };
    refused(ParseInventory(AsBytes(json("inventory"))));
    refused(ParseManifest(AsBytes(json("manifest"))));
    refused(ParseAnchorManifest(AsBytes(json("anchor"))));
    const auto container = [&](std::string_view metadata) {
      const std::string header = R"({"__metadata__":{)" + std::string(metadata) + found + R"("}})";
      std::string file(8, '\0');
      StoreLe<uint64_t>(header.size(), reinterpret_cast<uint8_t*>(file.data()));
      return file + header;
    };
    refused(ParseUpdate(AsBytes(container(R"("format":"deltawire.update","format_version":")"))));
    refused(ParseOpenPatch(
        AsBytes(container(R"("format":"sparse_weight_patch","deltawire.format":"deltawire.open",)"
                          R"("deltawire.format_version":")"))));
  }
}

}  // namespace
}  // namespace deltawire::format
