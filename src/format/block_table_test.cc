#include "format/block_table.h"

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/rng.h"
#include "format/test_data.h"

namespace deltawire::format {
namespace {

Inventory OneTensor(Shape shape, Dtype dtype = Dtype::kBf16) {
  return {.cast_rule = "", .tensors = {{.name = "t", .dtype = dtype, .shape = std::move(shape)}}};
}

// Boxes as empty non-dense blocks of one tensor.
BlockTable TableOf(std::vector<Box> boxes) {
  BlockTable table;
  for (Box& box : boxes)
    table.blocks.push_back({.tensor = 0, .box = std::move(box), .coding = 1, .after = {}});
  SortBlocks(table);
  return table;
}

Status CheckBoxes(const Shape& shape, std::vector<Box> boxes) {
  return CheckBlockTable(TableOf(std::move(boxes)), OneTensor(shape), 0);
}

Status CheckWith(const std::function<void(BlockTable&)>& change) {
  BlockTable table = ExampleTable();
  change(table);
  return CheckBlockTable(table, ExampleInventory(), kExampleBlocks.size());
}

// The example of docs/formats/block-table.md.
TEST(BlockTable, Example) {
  const BlockTable table = ExampleTable();
  ASSERT_TRUE(CheckBlockTable(table, ExampleInventory(), kExampleBlocks.size()));
  const Bytes bytes = BlockTableBytes(table, ExampleInventory());
  EXPECT_EQ(ToHex(bytes),
            "44574254"
            "01"
            "02"
            "20a7623fc2ec7223"
            "02"
            "010001"
            "010202"
            "02030201"
            "161bf0ed0262763f"
            "03000000000000000400000000000000"
            "0005"
            "00"
            "b7f434718fd7e84d"
            "05000000000000000600000000000000");
  EXPECT_EQ(ParseBlockTable(bytes, ExampleInventory(), kExampleBlocks.size()), table);
}

// Seven tensors of three elements, "d" of another width.
Inventory JointInventory() {
  Inventory inventory{.cast_rule = "", .tensors = {}};
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) {
    inventory.tensors.push_back({.name = name, .dtype = Dtype::kBf16, .shape = {3}});
  }
  inventory.tensors[3].dtype = Dtype::kF32;
  inventory.tensors[3].shape = {2};
  return inventory;
}

constexpr uint64_t kJointBytes = 18;

BlockTable JointTable() {
  BlockTable table;
  table.tensors = {{.tensor = 3, .after = {{9, 10}}}};
  table.blocks = {{.tensor = 0,
                   .box = WholeBox({3}),
                   .joined = {1, 2, 4, 6},
                   .coding = 3,
                   .bytes = 11,
                   .hash = 0x0102030405060708,
                   .changed = 5,
                   .uncertain = 1,
                   .after = {{7, 8}}},
                  {.tensor = 3,
                   .box = WholeBox({2}),
                   .coding = 2,
                   .bytes = 7,
                   .hash = 0x1112131415161718,
                   .changed = 1,
                   .after = {{9, 10}}}};
  table.entropy_hash = Xxh3_64({});
  AssignOffsets(table);
  return table;
}

Status CheckJoint(const std::function<void(BlockTable&)>& change) {
  BlockTable table = JointTable();
  change(table);
  return CheckBlockTable(table, JointInventory(), kJointBytes);
}

// The example of docs/formats/block-table.md.
TEST(BlockTable, JointExample) {
  const Bytes bytes = BlockTableBytes(JointTable(), JointInventory());
  EXPECT_EQ(ToHex(bytes),
            "44574254"
            "01"
            "00"
            "c294d3380580062d"
            "02"
            "0008"
            "0202"
            "0000"
            "0000"
            "030b0501"
            "0807060504030201"
            "07000000000000000800000000000000"
            "0205"
            "02070100"
            "1817161514131211"
            "09000000000000000a00000000000000");
  EXPECT_EQ(ParseBlockTable(bytes, JointInventory(), kJointBytes), JointTable());
  EXPECT_EQ(BlockElements(JointTable().blocks[0], JointInventory()), 15u);
  EXPECT_EQ(BlockName(JointTable().blocks[0], JointInventory()), "joint block of 5 tensors, \"a\" to \"g\"");
}

TEST(BlockTable, EachFieldOfAJointBlockIsChecked) {
  EXPECT_TRUE(CheckJoint([](BlockTable&) {}));
  EXPECT_TRUE(CheckJoint([](BlockTable& t) { t.blocks[0].changed = 14; }));
  const std::vector<std::function<void(BlockTable&)>> changes = {
      [](BlockTable& t) { t.blocks[0].changed = 15; },
      [](BlockTable& t) { t.blocks[0].coding = kDenseCoding; },
      [](BlockTable& t) { t.blocks[0].box.size[0] = 2; },
      [](BlockTable& t) { t.blocks[0].joined = {2, 1}; },
      [](BlockTable& t) { t.blocks[0].joined = {1, 1}; },
      [](BlockTable& t) { t.blocks[0].joined = {0, 1}; },
      [](BlockTable& t) { t.blocks[0].joined = {1, 7}; },
      [](BlockTable& t) { t.blocks[0].joined = {1, 3}; },  // another width
      [](BlockTable& t) { t.blocks[0].joined.push_back(UINT32_MAX); },
      [](BlockTable& t) { t.tensors = {{2, {}}, {3, {}}}; },  // a digest of a joined tensor
      [](BlockTable& t) { t.tensors = {{0, {}}}; },
      [](BlockTable& t) { t.blocks[1].tensor = 4; },  // also joined
      [](BlockTable& t) { t.blocks[1].tensor = 0; },
      [](BlockTable& t) { t.blocks[1] = t.blocks[0]; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    const Status status = CheckJoint([&](BlockTable& table) {
      changes[i](table);
      if (i >= 11) {
        table.blocks[1].box = WholeBox({3});
        table.blocks[1].bytes = 7;
        table.tensors = {};
        AssignOffsets(table);
      }
    });
    ASSERT_FALSE(status) << i;
    EXPECT_EQ(status.error().code(), Code::kCorrupt) << i;
  }
}

TEST(BlockTable, JointBlocksHaveAtMostTwoToThe21ElementsAndNoneIsEmpty) {
  const auto check = [](uint64_t first, uint64_t second) {
    Inventory inventory = OneTensor({first});
    inventory.tensors.push_back({.name = "u", .shape = {second}});
    BlockTable table;
    table.blocks = {{.tensor = 0, .box = WholeBox({first}), .joined = {1}, .coding = 1, .after = {}}};
    return CheckBlockTable(table, inventory, 0).has_value();
  };
  EXPECT_TRUE(check(kMaxBlockElements - 1, 1));
  EXPECT_FALSE(check(kMaxBlockElements, 1));
  EXPECT_FALSE(check(1, kMaxBlockElements));
  EXPECT_FALSE(check(1, 0));
  EXPECT_FALSE(check(0, 1));
  EXPECT_FALSE(check(uint64_t{1} << 40, uint64_t{1} << 40));
}

TEST(BlockTable, AJointBlockOfOneTensorIsASecondSpelling) {
  BlockTable table = JointTable();
  table.blocks.resize(1);
  table.blocks[0].joined = {1};
  table.tensors.clear();
  Bytes bytes = BlockTableBytes(table, JointInventory());
  ASSERT_TRUE(ParseBlockTable(bytes, JointInventory(), 11));
  const size_t more = 4 + 1 + 1 + 8 + 1 + 2 + 1;
  ASSERT_EQ(bytes[more], 1);
  bytes[more] = 0;
  const auto parsed = ParseBlockTable(bytes, JointInventory(), 11);
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message().find("a joint block of one tensor"), std::string::npos);
}

TEST(BlockTable, JoinedTensorsInAnyStretches) {
  constexpr uint64_t kSeed = 12;
  SeededRng rng(kSeed);
  Inventory inventory{.cast_rule = "", .tensors = {}};
  for (int i = 0; i < 300; ++i) inventory.tensors.push_back({.name = fmt::format("{:03}", i), .shape = {2}});
  for (int round = 0; round < 200; ++round) {
    // Each tensor in one of four joint blocks, or in none.
    const uint64_t none = rng.Next() % 8;
    std::vector<std::vector<uint32_t>> groups(4);
    for (uint32_t t = 0; t < 300; ++t) {
      const uint64_t group = rng.Next() % (4 + none);
      if (group < 4) groups[group].push_back(t);
      while (rng.Next() % 3 != 0 && group < 4 && t + 1 < 300) groups[group].push_back(++t);
    }
    BlockTable table;
    for (const auto& group : groups) {
      if (group.size() < 2) continue;
      table.blocks.push_back({.tensor = group[0],
                              .box = WholeBox({2}),
                              .joined = {group.begin() + 1, group.end()},
                              .coding = 1,
                              .after = {{rng.Next(), rng.Next()}}});
    }
    SortBlocks(table);
    ASSERT_TRUE(CheckBlockTable(table, inventory, 0)) << "seed " << kSeed << " round " << round;
    EXPECT_EQ(ParseBlockTable(BlockTableBytes(table, inventory), inventory, 0), table);
  }
}

// Every joint block may name all tensors in a few bytes: refused before they fill the memory.
TEST(BlockTable, JoinedTensorsOfAHostileTableTakeNoMoreMemoryThanTheInventory) {
  Inventory inventory{.cast_rule = "", .tensors = {}};
  constexpr uint32_t kTensors = 20'000;
  for (uint32_t i = 0; i < kTensors; ++i) {
    inventory.tensors.push_back({.name = fmt::format("{:05}", i), .shape = {}});
  }
  BlockTable table;
  for (uint32_t i = 0; i < 10'000; ++i) {
    table.blocks.push_back({.tensor = i, .box = Box{}, .joined = {}, .coding = 1, .after = {}});
    for (uint32_t t = i + 1; t < kTensors && i < 3; ++t) table.blocks.back().joined.push_back(t);
  }
  const auto parsed = ParseBlockTable(BlockTableBytes(table, inventory), inventory, 0);
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message().find("more joined tensors than the inventory has"), std::string::npos)
      << parsed.error().message();
}

TEST(BlockTable, EmptyTable) {
  const Bytes bytes = BlockTableBytes({}, ExampleInventory());
  EXPECT_EQ(bytes.size(), 15u);
  EXPECT_EQ(ParseBlockTable(bytes, ExampleInventory(), 0), BlockTable{});
  EXPECT_FALSE(ParseBlockTable(bytes, ExampleInventory(), 1));
}

TEST(BlockTable, TensorDigestsInAllForms) {
  const Digest block_digest = {{7, 8}};
  const Digest other = {{9, 10}};
  const Inventory inventory = OneTensor({2, 2});
  for (const bool whole : {false, true}) {
    for (const auto& digest : {std::optional<Digest>{}, std::optional(block_digest), std::optional(other)}) {
      BlockTable table = TableOf({{.start = {0, 0}, .size = {whole ? 2u : 1u, 2}}});
      table.blocks[0].after = block_digest;
      if (digest) table.tensors = {{0, *digest}};
      const Bytes bytes = BlockTableBytes(table, inventory);
      EXPECT_EQ(ParseBlockTable(bytes, inventory, 0), table);
    }
  }
  BlockTable digest_only;
  digest_only.tensors = {{0, other}};
  EXPECT_EQ(ParseBlockTable(BlockTableBytes(digest_only, inventory), inventory, 0), digest_only);
}

TEST(BlockTable, ScalarsAndEmptyTensors) {
  EXPECT_TRUE(CheckBoxes({}, {Box{}}));
  EXPECT_FALSE(CheckBoxes({}, {Box{}, Box{}}));
  EXPECT_FALSE(CheckBoxes({0, 4}, {WholeBox({0, 4})}));
  const BlockTable table = TableOf({Box{}});
  EXPECT_EQ(ParseBlockTable(BlockTableBytes(table, OneTensor({})), OneTensor({}), 0), table);
}

TEST(BlockTable, EachFieldIsChecked) {
  EXPECT_TRUE(CheckWith([](BlockTable&) {}));
  const std::vector<std::function<void(BlockTable&)>> changes = {
      [](BlockTable& t) { t.blocks[1].tensor = 3; },
      [](BlockTable& t) { t.blocks[0].tensor = 2; },
      [](BlockTable& t) {
        std::swap(t.blocks[0], t.blocks[1]);
        AssignOffsets(t);
      },
      [](BlockTable& t) { t.tensors[0].tensor = 3; },
      [](BlockTable& t) { t.tensors.push_back(t.tensors[0]); },
      [](BlockTable& t) { t.blocks[0].box.start[0] = 3; },
      [](BlockTable& t) { t.blocks[0].box.size[1] = 4; },
      [](BlockTable& t) { t.blocks[0].box.size[1] = 0; },
      [](BlockTable& t) { t.blocks[0].box.start[0] = UINT64_MAX; },
      [](BlockTable& t) { t.blocks[0].box.size.pop_back(); },
      [](BlockTable& t) {
        t.blocks[0].bytes = 4;
        AssignOffsets(t);
      },
      [](BlockTable& t) {
        t.blocks[0].bytes = UINT64_MAX;
        AssignOffsets(t);
      },
      [](BlockTable& t) { t.blocks[1].bytes = 7; },
      [](BlockTable& t) { t.blocks[1].changed = 1; },    // dense
      [](BlockTable& t) { t.blocks[1].uncertain = 1; },  // dense
      [](BlockTable& t) { t.blocks[1].offset = 2; },
      [](BlockTable& t) { t.blocks[0].changed = 6; },
      [](BlockTable& t) {
        t.blocks[0].changed = UINT32_MAX;
        t.blocks[0].uncertain = UINT32_MAX;
      },
      [](BlockTable& t) { t.blocks.pop_back(); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    const Status status = CheckWith(changes[i]);
    ASSERT_FALSE(status) << i;
    EXPECT_EQ(status.error().code(), Code::kCorrupt) << i;
  }
}

TEST(BlockTable, BlocksHaveAtMostTwoToThe21Elements) {
  EXPECT_TRUE(CheckBoxes({kMaxBlockElements}, {WholeBox({kMaxBlockElements})}));
  EXPECT_FALSE(CheckBoxes({kMaxBlockElements + 1}, {WholeBox({kMaxBlockElements + 1})}));
}

TEST(BlockTable, OverlapsAreFound) {
  const Shape shape = {8, 8};
  EXPECT_TRUE(CheckBoxes(shape, {{{0, 0}, {4, 8}}, {{4, 0}, {4, 8}}}));
  EXPECT_FALSE(CheckBoxes(shape, {{{0, 0}, {5, 8}}, {{4, 0}, {4, 8}}}));
  EXPECT_FALSE(CheckBoxes(shape, {{{0, 0}, {8, 8}}, {{4, 4}, {1, 1}}}));
  EXPECT_FALSE(CheckBoxes(shape, {{{0, 0}, {8, 1}}, {{3, 0}, {1, 8}}}));
  EXPECT_FALSE(CheckBoxes(shape, {{{0, 0}, {4, 4}}, {{0, 0}, {4, 4}}}));
  EXPECT_TRUE(CheckBoxes(shape, {{{0, 0}, {4, 4}}, {{0, 4}, {4, 4}}, {{4, 0}, {4, 8}}}));
  // A pinwheel does not overlap, but no straight cut takes it apart; no grid makes one.
  const auto pinwheel =
      CheckBoxes({3, 3}, {{{0, 0}, {2, 1}}, {{0, 1}, {1, 2}}, {{1, 2}, {2, 1}}, {{2, 0}, {1, 2}}});
  ASSERT_FALSE(pinwheel);
  EXPECT_NE(pinwheel.error().message().find("can't be cut apart"), std::string::npos);
}

TEST(BlockTable, EveryGridIsAccepted) {
  const std::pair<Shape, Grid> cases[] = {{{16, 8}, {0, 8}},
                                          {{16, 8}, {1, 8}},
                                          {{7, 9, 5}, {2, 3}},
                                          {{6, uint64_t{3} << 20}, {0, 2}},
                                          {{3, uint64_t{5} << 19, 2}, {1, 3}},
                                          {{2, 2, uint64_t{1} << 22}, {1, 2}},
                                          {{1 << 12, 1 << 12}, {1, 8}}};
  for (const auto& [shape, grid] : cases) {
    const auto boxes = GridBlocks(shape, grid);
    ASSERT_TRUE(boxes);
    EXPECT_TRUE(CheckBoxes(shape, *boxes)) << ShapeText(shape);
    const BlockTable table = TableOf(*boxes);
    EXPECT_EQ(ParseBlockTable(BlockTableBytes(table, OneTensor(shape)), OneTensor(shape), 0), table);
  }
}

TEST(BlockTable, RandomBoxesAgainstCountingElements) {
  SeededRng rng(7);
  for (int round = 0; round < 3000; ++round) {
    std::vector<Box> boxes;
    int cells[6][6] = {};
    bool overlap = false;
    const uint64_t count = 1 + rng.Next() % 4;
    for (uint64_t i = 0; i < count; ++i) {
      Box box{{rng.Next() % 6, rng.Next() % 6}, {0, 0}};
      for (int d = 0; d < 2; ++d) box.size[d] = 1 + rng.Next() % std::min<uint64_t>(3, 6 - box.start[d]);
      for (uint64_t r = 0; r < box.size[0]; ++r) {
        for (uint64_t c = 0; c < box.size[1]; ++c) overlap |= cells[box.start[0] + r][box.start[1] + c]++ > 0;
      }
      boxes.push_back(std::move(box));
    }
    // Fewer than four boxes without overlap always come apart (a pinwheel has four).
    const Status status = CheckBoxes({6, 6}, boxes);
    if (overlap || count < 4) {
      EXPECT_EQ(status.has_value(), !overlap) << round;
    }
  }
}

TEST(BlockTable, ManyBlocksOfAHostileTableTakeLittleTime) {
  // 100,000 boxes in a staircase, each cut of which separates one.
  std::vector<Box> boxes;
  const Shape shape = {200000, 2};
  for (uint64_t i = 0; i < 100000; ++i) boxes.push_back({{2 * i, i % 2}, {i + 1 < 100000 ? 3u : 1u, 1}});
  EXPECT_TRUE(CheckBoxes(shape, boxes));
  for (Box& box : boxes) box = {{0, 0}, {200000, 2}};
  EXPECT_FALSE(CheckBoxes(shape, boxes));
}

TEST(BlockTable, TruncationAtEveryLengthAndTrailingBytes) {
  const Inventory inventory = ExampleInventory();
  Bytes bytes = BlockTableBytes(ExampleTable(), inventory);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto parsed = ParseBlockTable(ByteSpan(bytes).first(size), inventory, kExampleBlocks.size());
    ASSERT_FALSE(parsed) << size;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt);
  }
  bytes.push_back(0);
  EXPECT_FALSE(ParseBlockTable(bytes, inventory, kExampleBlocks.size()));
  const Bytes joint = BlockTableBytes(JointTable(), JointInventory());
  for (size_t size = 0; size < joint.size(); ++size) {
    EXPECT_FALSE(ParseBlockTable(ByteSpan(joint).first(size), JointInventory(), kJointBytes)) << size;
  }
}

TEST(BlockTable, WhatParsesHasExactlyOneByteForm) {
  SeededRng rng(1);
  const auto check = [&](const BlockTable& table, const Inventory& inventory, uint64_t blocks_bytes) {
    const Bytes bytes = BlockTableBytes(table, inventory);
    int accepted = 0;
    for (int round = 0; round < 200000; ++round) {
      Bytes changed = bytes;
      for (uint64_t n = 1 + rng.Next() % 3; n > 0; --n) {
        changed[rng.Next() % changed.size()] = static_cast<uint8_t>(rng.Next() >> rng.Next() % 8);
      }
      const auto parsed = ParseBlockTable(changed, inventory, blocks_bytes);
      if (!parsed) continue;
      EXPECT_EQ(BlockTableBytes(*parsed, inventory), changed);
      ++accepted;
    }
    EXPECT_GT(accepted, 1000);
  };
  check(ExampleTable(), ExampleInventory(), kExampleBlocks.size());
  check(JointTable(), JointInventory(), kJointBytes);
}

TEST(BlockTable, OtherVersionIsUnsupported) {
  Bytes bytes = BlockTableBytes({}, {});
  bytes[4] = 2;
  EXPECT_EQ(ParseBlockTable(bytes, {}, 0).error().code(), Code::kUnsupported);
  bytes[0] ^= 1;
  EXPECT_EQ(ParseBlockTable(bytes, {}, 0).error().code(), Code::kCorrupt);
}

TEST(BlockTable, CheckBlockFindsAnyFlip) {
  const BlockTable table = ExampleTable();
  for (const BlockEntry& block : table.blocks) {
    EXPECT_TRUE(CheckBlockBytes(block, BlockBytes(block, kExampleBlocks)));
    for (uint64_t i = 0; i < block.bytes; ++i) {
      Bytes flipped = kExampleBlocks;
      flipped[block.offset + i] ^= 1;
      EXPECT_EQ(CheckBlockBytes(block, BlockBytes(block, flipped)).error().code(), Code::kCorrupt);
    }
  }
  const ByteSpan bytes = BlockBytes(table.blocks[1], kExampleBlocks);
  EXPECT_EQ(CheckBlockBytes(table.blocks[1], bytes.first(bytes.size() - 1)).error().code(), Code::kCorrupt);
}

TEST(BlockTable, ADetachedTableSaysHowManyBytesItsBlocksHave) {
  const Bytes bytes = BlockTableBytes(ExampleTable(), ExampleInventory());
  for (const uint64_t most : {uint64_t{kExampleBlocks.size()}, uint64_t{1} << 40}) {
    const auto table = ParseDetachedTable(bytes, ExampleInventory(), most);
    ASSERT_TRUE(table) << table.error().message();
    EXPECT_EQ(*table, ParseBlockTable(bytes, ExampleInventory(), kExampleBlocks.size()));
  }
  const auto cut = ParseDetachedTable(bytes, ExampleInventory(), kExampleBlocks.size() - 1);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace deltawire::format
