#include "format/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace deltawire::format {
namespace {

Bytes File(std::string_view header, uint64_t data_bytes) {
  Bytes file(8 + header.size() + data_bytes);
  StoreLe<uint64_t>(header.size(), file.data());
  std::copy(header.begin(), header.end(), file.begin() + 8);
  return file;
}

Result<SafetensorsHeader> Parse(std::string_view header, uint64_t data_bytes) {
  const Bytes file = File(header, data_bytes);
  return ParseSafetensors(file, file.size());
}

void ExpectCorrupt(std::string_view header, uint64_t data_bytes) {
  const auto parsed = Parse(header, data_bytes);
  ASSERT_FALSE(parsed) << header;
  EXPECT_EQ(parsed.error().code(), Code::kCorrupt) << header;
}

// The example of docs/formats/safetensors.md, as the reference implementation 0.8 writes it.
TEST(Safetensors, Example) {
  std::vector<SafetensorsEntry> entries = {{.name = "a", .dtype = Dtype::kBf16, .shape = {2}},
                                           {.name = "b", .dtype = Dtype::kF32, .shape = {}}};
  const auto laid_out = LayoutCheckpoint(entries);
  ASSERT_TRUE(laid_out);
  const auto bytes = WriteSafetensorsHeader(*laid_out, {{"format", "pt"}});
  ASSERT_TRUE(bytes);
  EXPECT_EQ(AsText(ByteSpan(*bytes).subspan(8)),
            R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
            R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}})"
            "      ");
  EXPECT_EQ(ToHex(ByteSpan(*bytes).first(8)), "9000000000000000");
  const auto parsed = ParseSafetensors(*bytes, bytes->size() + 8);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->entries, *laid_out);
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
  EXPECT_EQ(parsed->data_offset, 152u);
}

TEST(Safetensors, FMT06_HeaderLength) {
  const uint8_t tiny[10] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
  EXPECT_EQ(SafetensorsHeaderBytes(ByteSpan(tiny), 10), 10u);
  for (const uint64_t n : {uint64_t{0}, uint64_t{3}, uint64_t{100'000'000}, uint64_t{100'000'001},
                           uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 7, UINT64_MAX - 8}) {
    Bytes file(tiny, tiny + 10);
    StoreLe(n, file.data());
    EXPECT_EQ(SafetensorsHeaderBytes(file, file.size()).error().code(), Code::kCorrupt) << n;
    EXPECT_EQ(ParseSafetensors(file, file.size()).error().code(), Code::kCorrupt) << n;
  }
}

TEST(Safetensors, FMT02_EmptyAndNearlyEmptyFiles) {
  for (size_t size = 0; size <= 8; ++size) {
    const Bytes file(size, 0);
    EXPECT_EQ(ParseSafetensors(file, size).error().code(), Code::kCorrupt) << size;
  }
  const auto empty = Parse("{}", 0);
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->entries.empty());
  EXPECT_TRUE(Parse("{\"__metadata__\":{}}", 0));
}

TEST(Safetensors, FMT03_DataMustBeCoveredExactly) {
  const char* header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  EXPECT_TRUE(Parse(header, 4));
  for (const uint64_t size : {0, 3, 5, 4100}) ExpectCorrupt(header, size);
  ExpectCorrupt("{}", 1);
}

TEST(Safetensors, HolesOverlapsAndReversedRanges) {
  const auto two = [](const char* a, const char* b) {
    return fmt::format(
        R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},"b":{{"dtype":"U8","shape":[4],)"
        R"("data_offsets":{}}}}})",
        a, b);
  };
  EXPECT_TRUE(Parse(two("[0,4]", "[4,8]"), 8));
  EXPECT_TRUE(Parse(two("[4,8]", "[0,4]"), 8));
  ExpectCorrupt(two("[0,4]", "[5,9]"), 9);
  ExpectCorrupt(two("[1,5]", "[5,9]"), 9);
  ExpectCorrupt(two("[0,4]", "[3,7]"), 7);
  ExpectCorrupt(two("[0,4]", "[0,4]"), 4);
  ExpectCorrupt(two("[4,0]", "[4,8]"), 8);
  ExpectCorrupt(two("[0,4]", "[4,7]"), 7);
  ExpectCorrupt(two("[0,4]", "[18446744073709551612,0]"), 4);
}

TEST(Safetensors, ZeroSizeAndScalarTensors) {
  const auto parsed = Parse(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                            R"("z":{"dtype":"BF16","shape":[2,0],"data_offsets":[4,4]},)"
                            R"("y":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}})",
                            4);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->entries[0].name, "y");
  EXPECT_EQ(parsed->entries[1].name, "s");
  EXPECT_EQ(parsed->entries[2].name, "z");
  ExpectCorrupt(
      R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
      4);
  ExpectCorrupt(R"({"z":{"dtype":"U8","shape":[0],"data_offsets":[0,1]}})", 1);
}

TEST(Safetensors, ReferenceVerdicts) {
  const auto shape = [](const char* text) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":{},"data_offsets":[0,4]}}}})", text);
  };
  EXPECT_TRUE(Parse(shape("[4]"), 4));
  for (const char* bad : {"[4.0]", "[4e0]", "[04]", "[-4]", "[-0,4]", "[18446744073709551616]", "[5]", "4",
                          "\"4\"", "null", "[[4]]", "[true]", "[2,18446744073709551612]", "{}",
                          "[9007199254740993]", "[4294967296,4294967296]", "[0,9223372036854775808,4]"}) {
    ExpectCorrupt(shape(bad), 4);
  }
  const auto offsets = [](const char* text) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})", text);
  };
  for (const char* bad :
       {"[0]", "[]", "[0,4,4]", "[0.0,4]", "[0,4e0]", "[0,\"4\"]", "4", "null", "[-0,4]", "[[0,4]]"}) {
    ExpectCorrupt(offsets(bad), 4);
  }
  for (const char* bad : {R"([])",
                          R"(4)",
                          R"("x")",
                          R"(null)",
                          R"({"a":4})",
                          R"({"a":null})",
                          R"({"a":[]})",
                          R"({"a":{}})",
                          R"({"a":{"dtype":"U8","shape":[0]}})",
                          R"({"a":{"dtype":"U8","data_offsets":[0,0]}})",
                          R"({"a":{"shape":[0],"data_offsets":[0,0]}})",
                          R"({"a":{"dtype":"u8","shape":[0],"data_offsets":[0,0]}})",
                          R"({"a":{"dtype":"U7","shape":[0],"data_offsets":[0,0]}})",
                          R"({"a":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})",
                          R"({"__metadata__":{"a":1}})",
                          R"({"__metadata__":{"a":null}})",
                          R"({"__metadata__":{"a":{}}})",
                          R"({"__metadata__":[]})",
                          R"({"__metadata__":true})",
                          R"({"\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                          "\xef\xbb\xbf{}",
                          "{} x",
                          "{}{}"}) {
    ExpectCorrupt(bad, 0);
  }
  EXPECT_TRUE(Parse("{\"__metadata__\":null}", 0));
  EXPECT_TRUE(Parse(" \t\r\n{} \t\r\n", 0));
}

TEST(Safetensors, DuplicateKeysAfterUnescaping) {
  for (
      const char* bad :
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       R"({"__metadata__":{},"__metadata__":{}})", R"({"__metadata__":null,"__metadata__":{}})",
       R"({"__metadata__":{"k":"1","k":"1"}})",
       R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       R"({"a":{"dtype":"U8","shape":[0],"shape":[0],"data_offsets":[0,0]}})",
       R"({"a":{"x":1,"x":1,"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       R"({"a":{"x":{"y":1,"y":1},"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"}) {
    const auto parsed = Parse(bad, 0);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_NE(parsed.error().message().find("twice"), std::string::npos) << parsed.error().message();
  }
}

TEST(Safetensors, UnknownFieldsOfAnEntryAreIgnored) {
  const auto parsed =
      Parse(R"({"a":{"x":{"dtype":[1,{"z":null}]},"dtype":"U8","y":-1.5,"shape":[1],"w":"s","v":[[]],)"
            R"("u":true,"data_offsets":[0,1],"t":7,"s":null},"b":{"x":1,"dtype":"U8","shape":[0],)"
            R"("data_offsets":[1,1]}})",
            1);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->entries.size(), 2u);
  EXPECT_EQ(parsed->entries[0].dtype, Dtype::kU8);
}

TEST(Safetensors, SubByteDtypesAreUnsupportedByName) {
  for (const char* dtype : {"F4", "F6_E2M3", "F6_E3M2"}) {
    const auto parsed =
        Parse(fmt::format(R"({{"w.fp4":{{"dtype":"{}","shape":[8],"data_offsets":[0,4]}}}})", dtype), 4);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().code(), Code::kUnsupported);
    EXPECT_NE(parsed.error().message().find("w.fp4"), std::string::npos);
  }
}

TEST(Safetensors, EveryDtypeRoundTrips) {
  std::vector<SafetensorsEntry> entries;
  for (uint8_t i = 0; i < kDtypeCount; ++i) {
    entries.push_back({.name = fmt::format("t{}", i), .dtype = static_cast<Dtype>(i), .shape = {3, 1}});
  }
  entries = LayoutInOrder(entries).value();
  const Bytes header = WriteSafetensorsHeader(entries, {}).value();
  const auto parsed = ParseSafetensors(header, header.size() + entries.back().end);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->entries, entries);
}

TEST(Safetensors, LayoutFollowsTheReferenceWriter) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, dtype] : {std::pair{"b", Dtype::kU8},
                                    {"a", Dtype::kU8},
                                    {"z", Dtype::kBf16},
                                    {"y", Dtype::kF16},
                                    {"x", Dtype::kI64},
                                    {"w", Dtype::kF8E4M3}}) {
    entries.push_back({.name = name, .dtype = dtype, .shape = {1}});
  }
  const auto laid_out = LayoutCheckpoint(entries).value();
  std::string order;
  for (const auto& entry : laid_out) order += entry.name;
  EXPECT_EQ(order, "xzywab");
}

TEST(Safetensors, WriterRefuses) {
  const auto write = [](std::string name) {
    return WriteSafetensorsHeader({{.name = std::move(name), .dtype = Dtype::kU8, .shape = {0}}}, {});
  };
  EXPECT_TRUE(write("a"));
  for (const std::string& name :
       {std::string(), std::string("__metadata__"), std::string("a\0b", 3), std::string("\xff")}) {
    EXPECT_EQ(write(name).error().code(), Code::kInvalidArgument);
  }
  const SafetensorsEntry a = {.name = "a", .dtype = Dtype::kU8, .shape = {0}};
  EXPECT_FALSE(WriteSafetensorsHeader({a, a}, {}));
  EXPECT_FALSE(WriteSafetensorsHeader({{.name = "a", .dtype = Dtype::kU8, .shape = {4}}}, {}));
  EXPECT_FALSE(WriteSafetensorsHeader({a}, {{"k", "\xff"}}));
  EXPECT_FALSE(WriteSafetensorsHeader({}, {{"k", std::string(kMaxSafetensorsHeaderBytes, 'x')}}));
  EXPECT_FALSE(LayoutInOrder({{.name = "a", .dtype = Dtype::kF64, .shape = {uint64_t{1} << 62}}}));
  EXPECT_FALSE(LayoutInOrder({{.name = "a", .dtype = Dtype::kU8, .shape = {uint64_t{1} << 63}},
                              {.name = "b", .dtype = Dtype::kU8, .shape = {uint64_t{1} << 63}}}));
}

TEST(Safetensors, OddNamesAreReadAndEscapedInMessages) {
  const auto parsed = Parse(R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                            R"("a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                            0);
  ASSERT_TRUE(parsed);
  const auto bad = Parse(R"({"a\u0000\n":{"dtype":"X","shape":[0],"data_offsets":[0,0]}})", 0);
  EXPECT_NE(bad.error().message().find("a\\x00\\x0a"), std::string::npos) << bad.error().message();
}

TEST(Safetensors, TruncationAtEveryLength) {
  const Bytes file =
      File(R"({"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", 4);
  for (size_t size = 0; size < file.size(); ++size) {
    const Bytes cut(file.begin(), file.begin() + size);
    EXPECT_FALSE(ParseSafetensors(cut, cut.size())) << size;
  }
}

TEST(Safetensors, HostileNesting) {
  ExpectCorrupt(std::string(100000, '['), 0);
  std::string deep = R"({"a":{"x":)";
  deep += std::string(100000, '[');
  ExpectCorrupt(deep, 0);
  std::string rank = R"({"a":{"dtype":"U8","shape":[0)";
  for (int i = 0; i < 100; ++i) rank += ",1";
  rank += R"(],"data_offsets":[0,0]}})";
  EXPECT_EQ(Parse(rank, 0).error().code(), Code::kUnsupported);
}

TEST(Safetensors, AMillionTensors) {
  std::string header = "{";
  for (int i = 0; i < 1000000; ++i) {
    header += fmt::format(R"({}"model.layers.{}.w":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                          i ? "," : "", i, i, i + 1);
  }
  header += "}";
  const Bytes prefix = File(header, 0);
  const auto parsed = ParseSafetensors(prefix, prefix.size() + 1000000);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->entries.size(), 1000000u);
}

}  // namespace
}  // namespace deltawire::format
