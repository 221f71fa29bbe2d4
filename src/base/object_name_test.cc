#include "base/object_name.h"

#include <gtest/gtest.h>

#include <string>

namespace deltawire {
namespace {

TEST(ObjectName, AcceptsTheNamesOfACatalog) {
  for (const char* name :
       {"LATEST", "manifests/00000042.json", "updates/00000042/a1b2-part-00003.safetensors",
        "anchors/00000040/model-00001-of-00002.safetensors", "anchors/00000040/tokenizer_config.json"})
    EXPECT_TRUE(IsSafeObjectName(name)) << name;
}

TEST(ObjectName, SEC03_RefusesNamesThatLeaveTheRoot) {
  for (const char* name :
       {"",      "/",       "/etc/passwd", "..",    "../x", "a/../b", "a/..", "a//b", "a/",       ".", "./a",
        "a/./b", ".hidden", "a/.tmp-1",    "C:\\x", "C:/x", "a\\b",   "a b",  "a\nb", "\xc3\xa9", "a*"})
    EXPECT_FALSE(IsSafeObjectName(name)) << name;
  EXPECT_FALSE(IsSafeObjectName(std::string_view("a\0b", 3)));
}

TEST(ObjectName, LimitsLengths) {
  EXPECT_TRUE(IsSafeObjectName(std::string(200, 'a')));
  EXPECT_FALSE(IsSafeObjectName(std::string(201, 'a')));
  std::string name = "a";
  while (name.size() < 899) name += "/a";
  EXPECT_TRUE(IsSafeObjectName(name));
  EXPECT_FALSE(IsSafeObjectName(name + "/a"));
}

}  // namespace
}  // namespace deltawire
