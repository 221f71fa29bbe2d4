#include "format/json.h"

#include <gtest/gtest.h>

#include <string>

namespace deltawire::format {
namespace {

Result<nlohmann::json> Parse(std::string_view text, JsonLimits limits = {.max_bytes = 1 << 20}) {
  return ParseJson(AsBytes(text), limits, "text");
}

TEST(Json, KeepsIntegersExact) {
  const auto value = Parse("[0, 9007199254740993, 18446744073709551615]");
  ASSERT_TRUE(value);
  EXPECT_EQ((*value)[1].get<uint64_t>(), 9007199254740993u);
  EXPECT_EQ((*value)[2].get<uint64_t>(), UINT64_MAX);
}

TEST(Json, OnlyPlainDigitsAreUnsigned) {
  for (const char* text : {"4.0", "4e0", "-1", "-0", "18446744073709551616", "1e3"}) {
    const auto value = Parse(fmt::format("{{\"n\":{}}}", text));
    ASSERT_TRUE(value) << text;
    const auto object = JsonObject::From(*value, "root");
    ASSERT_TRUE(object);
    const auto number = object->Unsigned("n");
    ASSERT_FALSE(number) << text;
    EXPECT_EQ(number.error().code(), Code::kCorrupt);
    EXPECT_NE(number.error().message().find("root.n"), std::string::npos);
  }
}

TEST(Json, RefusesWhatJsonDoesNotAllow) {
  for (const std::string& text : {std::string(""),
                                  std::string(" "),
                                  std::string("{"),
                                  std::string("{}x"),
                                  std::string("{}{}"),
                                  std::string("04"),
                                  std::string("+1"),
                                  std::string("[1,]"),
                                  std::string("{\"a\":1,}"),
                                  std::string("{a:1}"),
                                  std::string("'a'"),
                                  std::string("// c\n1"),
                                  std::string("nan"),
                                  std::string("1e999"),
                                  std::string("\"\\ud800\""),
                                  std::string("\"\\ud800\\u0041\""),
                                  std::string("\"\\udc00\""),
                                  std::string("\"\xff\""),
                                  std::string("\"\xed\xa0\x80\""),
                                  std::string("\"a\nb\""),
                                  std::string("\xef\xbb\xbf{}"),
                                  std::string("{}\0", 3),
                                  std::string("{}\0garbage", 10),
                                  std::string("\"a\0b\"", 5)}) {
    const auto value = Parse(text);
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().code(), Code::kCorrupt);
  }
}

TEST(Json, RefusesDuplicateKeysAfterUnescaping) {
  for (const char* text : {R"({"a":1,"a":1})", R"({"a":1,"\u0061":2})", R"({"x":{"b":[],"c":1,"b":[]}})"}) {
    const auto value = Parse(text);
    ASSERT_FALSE(value) << text;
    EXPECT_NE(value.error().message().find("twice"), std::string::npos) << value.error().message();
  }
  EXPECT_TRUE(Parse(R"([{"a":1},{"a":2},{"b":{"a":3},"a":4}])"));
}

TEST(Json, DepthIsLimitedWithoutRecursion) {
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += open;
    const auto value = Parse(deep);
    ASSERT_FALSE(value);
    EXPECT_NE(value.error().message().find("deeper than 16"), std::string::npos) << value.error().message();
  }
  EXPECT_TRUE(Parse(std::string(16, '[') + std::string(16, ']')));
}

TEST(Json, SizeIsCheckedBeforeReading) {
  // A gigabyte that is never touched.
  const uint8_t byte = '[';
  const auto value = ParseJson(ByteSpan(&byte, size_t{1} << 30), {.max_bytes = 1 << 20}, "text");
  ASSERT_FALSE(value);
  EXPECT_NE(value.error().message().find("1073741824"), std::string::npos);
}

TEST(Json, ValuesAreLimited) {
  EXPECT_TRUE(Parse("[1,2,3]", {.max_bytes = 100, .max_values = 4}));
  EXPECT_FALSE(Parse("[1,2,3,4]", {.max_bytes = 100, .max_values = 4}));
}

TEST(Json, ObjectNamesWhatIsMissingOrWrong) {
  const auto value = Parse(R"({"s":"x","h":"00","o":{},"a":[],"format":"f","format_version":3})");
  ASSERT_TRUE(value);
  const auto object = JsonObject::From(*value, "root");
  ASSERT_TRUE(object);
  EXPECT_EQ(object->String("s"), "x");
  EXPECT_TRUE(object->Object("o"));
  EXPECT_TRUE(object->Array("a"));
  EXPECT_EQ(object->String("z").error().message(), "root: missing field \"z\"");
  EXPECT_EQ(object->String("o").error().message(), "root.o: an object, expected a string");
  EXPECT_EQ(object->Unsigned("s").error().message(), "root.s: a string, expected an unsigned 64-bit integer");
  EXPECT_EQ(object->Sha256("h").error().code(), Code::kCorrupt);
  EXPECT_EQ(object->StateDigest("h").error().code(), Code::kCorrupt);
  EXPECT_EQ(object->CheckFormat("g", 3).error().code(), Code::kCorrupt);
  EXPECT_TRUE(object->CheckFormat("f", 3));
  const auto version = object->CheckFormat("f", 0);
  EXPECT_EQ(version.error().code(), Code::kUnsupported);
  EXPECT_NE(version.error().message().find("version 3; this build reads version 0"), std::string::npos);
  EXPECT_FALSE(JsonObject::From((*value)["a"], "root.a"));
}

}  // namespace
}  // namespace deltawire::format
