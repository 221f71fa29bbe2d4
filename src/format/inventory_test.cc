#include "format/inventory.h"

#include <gtest/gtest.h>

#include "format/binary.h"
#include "format/test_data.h"

namespace deltawire::format {
namespace {

Status CheckWith(const std::function<void(Inventory&)>& change) {
  Inventory inventory = ExampleInventory();
  change(inventory);
  return CheckInventory(inventory);
}

// The example of docs/formats/inventory.md.
TEST(Inventory, Example) {
  const Inventory inventory = ExampleInventory();
  ASSERT_TRUE(CheckInventory(inventory));
  const std::string text = InventoryText(inventory);
  EXPECT_EQ(
      text,
      R"({"cast_rule":"floating parameters to BF16","format":"deltawire.inventory","format_version":1,"tensors":[)"
      R"({"aliases":["lm_head.weight"],"cast":"f32->bf16","dtype":"BF16","name":"embed.weight","shape":[4,2]},)"
      R"({"cast":"f32->bf16","dtype":"BF16","grid":[0,2],"name":"mlp.weight","shape":[4,3]},)"
      R"({"dtype":"F32","name":"norm.weight","shape":[2]}]})");
  EXPECT_EQ(InventoryHash(inventory), "7cb615b6631e5a8cb4298303238a093eb7025518e358fdbdcab67e557670d196");
  EXPECT_EQ(ParseInventory(AsBytes(text)), inventory);
}

TEST(Inventory, EmptyRoundTrips) {
  const Inventory empty;
  EXPECT_EQ(ParseInventory(AsBytes(InventoryText(empty))), empty);
}

TEST(Inventory, OnlyTheCanonicalTextIsRead) {
  const std::string text = InventoryText(ExampleInventory());
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string out = text;
    out.replace(out.find(from), from.size(), to);
    return ParseInventory(AsBytes(out));
  };
  EXPECT_TRUE(ParseInventory(AsBytes(text)));
  EXPECT_FALSE(ParseInventory(AsBytes(text + "\n")));
  EXPECT_FALSE(replaced("\"shape\":[2]", "\"shape\":[ 2]"));
  EXPECT_FALSE(replaced("\"name\":\"norm", "\"aliases\":[],\"name\":\"norm"));
  EXPECT_FALSE(replaced("\"dtype\":\"F32\"", "\"cast\":\"none\",\"dtype\":\"F32\""));
  EXPECT_FALSE(replaced("\"name\":\"norm", "\"extra\":1,\"name\":\"norm"));
  EXPECT_FALSE(replaced("norm", "n\\u006frm"));
  EXPECT_FALSE(replaced("\"format\":", "\"aaa\":1,\"format\":"));
  const auto version = replaced("version\":1", "version\":2");
  EXPECT_EQ(version.error().code(), Code::kUnsupported);
}

TEST(Inventory, EveryFlippedByteIsAnErrorOrAnotherInventory) {
  const Inventory inventory = ExampleInventory();
  const std::string text = InventoryText(inventory);
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      const auto parsed = ParseInventory(AsBytes(flipped));
      // Its hash is the object's name: a text that still parses has another identity.
      if (parsed) {
        EXPECT_NE(InventoryHash(*parsed), InventoryHash(inventory));
      }
    }
  }
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(ParseInventory(AsBytes(std::string_view(text).substr(0, size))));
  }
}

TEST(Inventory, NamesThatCantBeCanonical) {
  for (const std::string& name :
       {std::string(), std::string("a\0b", 3), std::string("\xff"), std::string(1025, 'a'),
        std::string("__metadata__"), std::string("__awex_delta_header__"), std::string("deltawire.blocks"),
        std::string("w.idx"), std::string("w.val"), std::string("w@delta_idx"), std::string("w@delta_val")}) {
    EXPECT_EQ(CheckTensorName(name).error().code(), Code::kInvalidArgument);
    EXPECT_FALSE(CheckWith([&](Inventory& i) { i.tensors[0].aliases[0] = name; }));
  }
  for (const char* name : {"w", "model.layers.0.idx.weight", "w.value", "x deltawire.y", "\xc3\xa9"}) {
    EXPECT_TRUE(CheckTensorName(name)) << name;
  }
}

TEST(Inventory, EachFieldIsChecked) {
  EXPECT_TRUE(CheckWith([](Inventory&) {}));
  EXPECT_FALSE(CheckWith([](Inventory& i) { std::swap(i.tensors[0], i.tensors[1]); }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[1].name = i.tensors[0].name; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[1].aliases = {"lm_head.weight"}; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[0].aliases = {"mlp.weight"}; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[0].aliases = {"y", "x"}; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[0].aliases = {"x", "x"}; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[0].shape = {uint64_t{1} << 41}; }));
  EXPECT_FALSE(
      CheckWith([](Inventory& i) { i.tensors[0].shape = {uint64_t{1} << 40, 0, uint64_t{1} << 40}; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[0].shape = Shape(9, 1); }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[1].grid = {2, 1}; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[1].grid = {0, 0}; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[1].grid = {0, 5}; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[1].cast = ""; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.tensors[1].cast = "\xff"; }));
  EXPECT_FALSE(CheckWith([](Inventory& i) { i.cast_rule = "\xff"; }));
}

TEST(Inventory, GridRuleIsThatOfGridBlocks) {
  for (const Shape& shape :
       {Shape{}, Shape{0}, Shape{1}, Shape{5}, Shape{5, 0}, Shape{3, 4}, Shape{2, 3, 4}}) {
    for (uint32_t axis = 0; axis < 4; ++axis) {
      for (uint32_t pieces = 0; pieces < 7; ++pieces) {
        const Inventory inventory = {.cast_rule = "",
                                     .tensors = {{.name = "t", .shape = shape, .grid = {axis, pieces}}}};
        EXPECT_EQ(CheckInventory(inventory).has_value(), GridBlocks(shape, {axis, pieces}).has_value())
            << ShapeText(shape) << " " << axis << " " << pieces;
      }
    }
  }
}

TEST(Inventory, HugeGridIsRefusedWithoutExpandingIt) {
  EXPECT_FALSE(CheckWith([](Inventory& i) {
    i.tensors[1].shape = {uint64_t{1} << 40};
    i.tensors[1].grid = {0, UINT32_MAX};
  }));
}

TEST(Inventory, ParserRefusesWrongTypes) {
  const auto with_tensor = [](std::string_view tensor) {
    return ParseInventory(AsBytes(fmt::format(
        R"({{"cast_rule":"","format":"deltawire.inventory","format_version":1,"tensors":[{}]}})", tensor)));
  };
  EXPECT_TRUE(with_tensor(R"({"dtype":"BF16","name":"a","shape":[1]})"));
  for (const char* tensor :
       {"1", "[]", R"({"dtype":"BF16","name":"a"})", R"({"name":"a","shape":[1]})",
        R"({"dtype":"BF16","shape":[1]})", R"({"dtype":"bf16","name":"a","shape":[1]})",
        R"({"dtype":"F4","name":"a","shape":[1]})", R"({"dtype":"BF16","name":"a","shape":[1.0]})",
        R"({"dtype":"BF16","name":"a","shape":[-1]})", R"({"dtype":"BF16","name":"a","shape":1})",
        R"({"aliases":"b","dtype":"BF16","name":"a","shape":[1]})",
        R"({"aliases":[1],"dtype":"BF16","name":"a","shape":[1]})",
        R"({"dtype":"BF16","grid":[0],"name":"a","shape":[1]})",
        R"({"dtype":"BF16","grid":[0,4294967296],"name":"a","shape":[1]})",
        R"({"cast":1,"dtype":"BF16","name":"a","shape":[1]})",
        R"({"dtype":"BF16","name":"a","name":"a","shape":[1]})"}) {
    EXPECT_EQ(with_tensor(tensor).error().code(), Code::kCorrupt) << tensor;
  }
}

TEST(Inventory, CompressedRoundTrip) {
  const Inventory inventory = ExampleInventory();
  const Bytes compressed = CompressInventory(inventory).value();
  EXPECT_EQ(DecompressInventory(compressed), inventory);
  for (size_t size = 0; size < compressed.size(); ++size) {
    EXPECT_FALSE(DecompressInventory(ByteSpan(compressed).first(size))) << size;
  }
  for (size_t i = 0; i < compressed.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes flipped = compressed;
      flipped[i] ^= static_cast<uint8_t>(1 << bit);
      const auto parsed = DecompressInventory(flipped);
      if (parsed) {
        EXPECT_EQ(*parsed, inventory);
      }
    }
  }
  Bytes longer = compressed;
  longer.push_back(0);
  EXPECT_FALSE(DecompressInventory(longer));
}

TEST(Inventory, CompressedSizeIsNotBelieved) {
  for (const uint64_t size : {uint64_t{1} << 20, kMaxInventoryBytes, kMaxInventoryBytes + 1, UINT64_MAX}) {
    Bytes bytes;
    AppendVarint(size, bytes);
    bytes.push_back(0x78);
    EXPECT_EQ(DecompressInventory(bytes).error().code(), Code::kCorrupt);
  }
}

TEST(Inventory, FindByNameOrAlias) {
  const Inventory inventory = ExampleInventory();
  EXPECT_EQ(FindTensor(inventory, "embed.weight"), 0u);
  EXPECT_EQ(FindTensor(inventory, "norm.weight"), 2u);
  EXPECT_EQ(FindTensor(inventory, "lm_head.weight"), 0u);
  EXPECT_FALSE(FindTensor(inventory, "zzz"));
  EXPECT_FALSE(FindTensor(inventory, ""));
}

TEST(InventoryCompare, NamesWhatDiffers) {
  const Inventory expected = ExampleInventory();
  EXPECT_TRUE(CompareInventories(expected, expected, "engine"));
  Inventory found = expected;
  found.tensors.erase(found.tensors.begin());
  found.tensors[0].shape = {3, 4};
  found.tensors.push_back({.name = "rotary", .shape = {1}});
  const auto status = CompareInventories(expected, found, "engine");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kMismatch);
  EXPECT_EQ(status.error().message(),
            "engine: tensors differ from the inventory: 1 missing: \"embed.weight\"; 1 extra: \"rotary\"; 1 "
            "different: "
            "\"mlp.weight\" is BF16 [3, 4], expected BF16 [4, 3]; both must describe the same model");
  for (const auto& change : std::vector<std::function<void(Inventory&)>>{
           [](Inventory& i) { i.tensors[0].dtype = Dtype::kF16; },
           [](Inventory& i) { i.tensors[0].grid = {0, 2}; }, [](Inventory& i) { i.tensors[0].cast = "none"; },
           [](Inventory& i) { i.tensors[0].aliases.clear(); }, [](Inventory& i) { i.cast_rule = "other"; }}) {
    Inventory other = expected;
    change(other);
    EXPECT_EQ(CompareInventories(expected, other, "engine").error().code(), Code::kMismatch);
  }
}

TEST(InventoryCompare, TenNamesAreShown) {
  Inventory expected;
  for (int i = 0; i < 25; ++i) {
    expected.tensors.push_back({.name = fmt::format("t{:02}", i), .shape = {1}});
  }
  const std::string text = CompareInventories(expected, {}, "engine").error().message();
  EXPECT_NE(text.find("25 missing: \"t00\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"t09\", ..."), std::string::npos) << text;
  EXPECT_EQ(text.find("t10"), std::string::npos) << text;
}

TEST(InventoryCompare, AListMayUseAliases) {
  const Inventory expected = ExampleInventory();
  std::vector<TensorSpec> found = {{"lm_head.weight", Dtype::kBf16, {4, 2}},
                                   {"mlp.weight", Dtype::kBf16, {4, 3}},
                                   {"norm.weight", Dtype::kF32, {2}}};
  EXPECT_TRUE(CompareTensors(expected, found, "model", ExtraTensors::kRefuse));
  found.push_back({"embed.weight", Dtype::kBf16, {2, 4}});
  EXPECT_FALSE(CompareTensors(expected, found, "model", ExtraTensors::kRefuse));
  found.back() = {"rotary", Dtype::kF32, {2}};
  EXPECT_FALSE(CompareTensors(expected, found, "model", ExtraTensors::kRefuse));
  EXPECT_TRUE(CompareTensors(expected, found, "model", ExtraTensors::kAllow));
  found.erase(found.begin());
  const auto status = CompareTensors(expected, found, "model", ExtraTensors::kAllow);
  EXPECT_NE(status.error().message().find("1 missing: \"embed.weight\""), std::string::npos);
}

}  // namespace
}  // namespace deltawire::format
