#include "format/text.h"

#include <gtest/gtest.h>

namespace deltawire::format {
namespace {

TEST(Text, Utf8) {
  for (const char* good : {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << Quoted(good);
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3", "\xe2\x82", "a\xff"}) {
    EXPECT_FALSE(IsUtf8(bad)) << Quoted(bad);
  }
}

TEST(Text, DecimalNumbersHaveOneSpelling) {
  EXPECT_EQ(DecimalFromText("0"), 0u);
  EXPECT_EQ(DecimalFromText("18446744073709551615"), UINT64_MAX);
  for (const char* bad : {"", "00", "01", "-1", "+1", " 1", "1 ", "1.0", "1e3", "18446744073709551616",
                          "99999999999999999999"}) {
    EXPECT_FALSE(DecimalFromText(bad)) << bad;
  }
}

TEST(Text, QuotedIsShortAndPrintable) {
  EXPECT_EQ(Quoted("model.norm.weight"), "\"model.norm.weight\"");
  EXPECT_EQ(Quoted(std::string_view("a\0\n\xff", 4)), "\"a\\x00\\x0a\\xff\"");
  EXPECT_EQ(Quoted(std::string(1000, 'x')),
            "\"" + std::string(120, 'x') + "\" (the first 120 of 1000 bytes)");
}

TEST(Text, JsonStringsAsPythonWritesThem) {
  std::string out;
  AppendJsonString(std::string_view("a\"\\\b\f\n\r\t\x01\x1f\x7f\xc3\xa9/\0", 15), out);
  EXPECT_EQ(out, "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\xc3\xa9/\\u0000\"");
}

TEST(Text, Identifiers) {
  EXPECT_TRUE(IsIdentifier("a1B2_-"));
  EXPECT_TRUE(IsIdentifier(std::string(64, 'a')));
  for (const char* bad : {"", "a/b", "a.b", "a b", "\xc3\xa9"}) EXPECT_FALSE(IsIdentifier(bad));
  EXPECT_FALSE(IsIdentifier(std::string(65, 'a')));
  EXPECT_TRUE(IsRunName("run 7 (\xc3\xa9)"));
  for (const char* bad : {"", "a\n", "\xff"}) EXPECT_FALSE(IsRunName(bad));
  EXPECT_FALSE(IsRunName(std::string(257, 'a')));
  EXPECT_TRUE(IsLowerHex("00ff", 4));
  EXPECT_FALSE(IsLowerHex("00FF", 4));
  EXPECT_FALSE(IsLowerHex("00f", 4));
}

}  // namespace
}  // namespace deltawire::format
