#include "format/hf_index.h"

#include <gtest/gtest.h>

namespace deltawire::format {
namespace {

Result<HfIndex> Parse(std::string_view text) { return ParseHfIndex(AsBytes(text)); }

TEST(HfIndex, RoundTrip) {
  HfIndex index;
  index.weight_map = {{"lm_head.weight", "model-00002-of-00002.safetensors"},
                      {"model.norm.weight", "model-00001-of-00002.safetensors"}};
  index.total_size = 269060552;
  index.total_parameters = 134515008;
  index.metadata = {{"delta_encoding", "xor"}};
  const std::string text = HfIndexText(index);
  EXPECT_EQ(Parse(text), index);
  EXPECT_EQ(text, R"({
  "metadata": {
    "delta_encoding": "xor",
    "total_parameters": 134515008,
    "total_size": 269060552
  },
  "weight_map": {
    "lm_head.weight": "model-00002-of-00002.safetensors",
    "model.norm.weight": "model-00001-of-00002.safetensors"
  }
}
)");
}

TEST(HfIndex, ClaimsThatAreNotExactAreIgnored) {
  const auto index = Parse(R"({"metadata":{"total_size":1.6e10,"x":[{}]},"weight_map":{"a":"b"}})");
  ASSERT_TRUE(index) << index.error().message();
  EXPECT_FALSE(index->total_size);
  EXPECT_TRUE(Parse(R"({"weight_map":{}})"));
  EXPECT_TRUE(Parse(R"({"metadata":null,"weight_map":{}})"));
}

TEST(HfIndex, ShardsStayInTheFolder) {
  for (const char* shard : {"", "/etc/passwd", "../x", "a/b", "..", ".", "a\\\\b", "a\\u0000b", "a\\nb"}) {
    const auto index = Parse(fmt::format(R"({{"weight_map":{{"t":"{}"}}}})", shard));
    ASSERT_FALSE(index) << shard;
    EXPECT_EQ(index.error().code(), Code::kCorrupt);
    EXPECT_NE(index.error().message().find("\"t\""), std::string::npos);
  }
  EXPECT_TRUE(Parse(R"({"weight_map":{"t":"my model (1).safetensors"}})"));
}

TEST(HfIndex, RefusesOtherShapes) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":"x","a":"y"}})", R"({"weight_map":{"a":"x","\u0061":"y"}})",
                           R"({"weight_map":{},"metadata":[]})", R"({"weight_map":{},"weight_map":{}})"}) {
    EXPECT_FALSE(Parse(text)) << text;
  }
}

}  // namespace
}  // namespace deltawire::format
