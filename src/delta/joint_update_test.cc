// Joint blocks: which tensors share one, and that updates made of them say the same as without.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "delta/join_blocks.h"
#include "delta/update_test.h"

namespace deltawire::delta {
namespace {

using codec::Coding;
using Tensors = std::vector<format::InventoryTensor>;

// The grouping of a table: for each block its tensors.
std::vector<std::vector<uint32_t>> GroupsOf(const format::BlockTable& table) {
  std::vector<std::vector<uint32_t>> groups;
  for (const auto& block : table.blocks) {
    groups.push_back({block.tensor});
    groups.back().insert(groups.back().end(), block.joined.begin(), block.joined.end());
  }
  return groups;
}

// As a model served in FP8 with scales beside its weights, one tensor large enough for a grid.
Tensors MixedModel() {
  return {{.name = "a.scale", .dtype = Dtype::kF32, .shape = {3, 5}},
          {.name = "a.weight", .dtype = Dtype::kF8E4M3, .shape = {90, 130}},
          {.name = "b.scale", .dtype = Dtype::kF32, .shape = {2, 5}},
          {.name = "b.weight", .dtype = Dtype::kF8E4M3, .shape = {60, 130}},
          {.name = "c.weight", .dtype = Dtype::kBf16, .shape = {160, 100}, .grid = {0, 4}},
          {.name = "d.bias", .dtype = Dtype::kBf16, .shape = {130}},
          {.name = "d.weight", .dtype = Dtype::kBf16, .shape = {130, 170}},
          {.name = "e.bias", .dtype = Dtype::kBf16, .shape = {1}},
          {.name = "e.weight", .dtype = Dtype::kBf16, .shape = {71, 170}},
          {.name = "f", .dtype = Dtype::kF64, .shape = {}},
          {.name = "g", .dtype = Dtype::kF16, .shape = {2, 3, 5}},
          {.name = "h", .dtype = Dtype::kI64, .shape = {9}}};
}

class JointUpdateTest : public UpdateTest {
 protected:
  explicit JointUpdateTest(Tensors tensors = MixedModel()) : UpdateTest(std::move(tensors)) {}

  // Every element of the named tensors moves by one step.
  std::vector<Bytes> Move(std::initializer_list<uint32_t> moved) const {
    std::vector<Bytes> next = model_.bits;
    for (const uint32_t t : moved) {
      for (size_t at = 0; at < next[t].size(); at += DtypeBytes(model_.inventory.tensors[t].dtype))
        next[t][at] ^= 1;
    }
    return next;
  }
};

TEST_F(JointUpdateTest, WholeTensorsOfOneWidthShareABlockAndKeepNoDigest) {
  const auto table = TableOf(Encode(Move({0, 1, 2, 3, 5, 7, 9, 10, 11}), Coding::kStep));
  // 1 and 3 are large, and all of them changes: each stays alone.
  EXPECT_EQ(GroupsOf(table), (std::vector<std::vector<uint32_t>>{{0, 2}, {1}, {3}, {5, 7, 10}, {9, 11}}));
  std::vector<uint32_t> digests;
  for (const auto& tensor : table.tensors) digests.push_back(tensor.tensor);
  EXPECT_EQ(digests, (std::vector<uint32_t>{1, 3}));
}

TEST_F(JointUpdateTest, ATensorWithoutChangesIsNotInTheBlock) {
  std::vector<Bytes> next = model_.bits;
  next[5][0] ^= 1;
  next[8][20] ^= 1;
  EXPECT_EQ(GroupsOf(TableOf(Encode(next, Coding::kStep))), (std::vector<std::vector<uint32_t>>{{5, 8}}));
  next[8] = model_.bits[8];
  EXPECT_EQ(GroupsOf(TableOf(Encode(next, Coding::kStep))), (std::vector<std::vector<uint32_t>>{{5}}));
}

TEST_F(JointUpdateTest, BlocksOfAGridAndDenseBlocksStayAlone) {
  const std::vector<Bytes> next = Change(0.02);
  for (const auto& block : TableOf(Encode(next, Coding::kStep)).blocks) {
    EXPECT_FALSE(block.joint() &&
                 (block.tensor == 4 || std::count(block.joined.begin(), block.joined.end(), 4)));
  }
  const auto dense = TableOf(Encode(next, Coding::kStep, true));
  EXPECT_TRUE(
      std::none_of(dense.blocks.begin(), dense.blocks.end(), [](const auto& b) { return b.joint(); }));
}

TEST_F(JointUpdateTest, NoneWhereNoneAreWanted) {
  most_joint_elements_ = 0;
  const std::vector<Bytes> next = Change(0.02);
  const auto table = TableOf(Encode(next, Coding::kStep));
  EXPECT_TRUE(
      std::none_of(table.blocks.begin(), table.blocks.end(), [](const auto& b) { return b.joint(); }));
  EXPECT_EQ(table.tensors.size(), Compare(next).size());
}

TEST_F(JointUpdateTest, TheMostElementsCanBeHitExactly) {
  const std::vector<Bytes> next = Move({5, 7, 10});  // 130, 1 and 30 elements
  most_joint_elements_ = 161;
  EXPECT_EQ(GroupsOf(TableOf(Encode(next, Coding::kStep))), (std::vector<std::vector<uint32_t>>{{5, 7, 10}}));
  most_joint_elements_ = 160;
  EXPECT_EQ(GroupsOf(TableOf(Encode(next, Coding::kStep))),
            (std::vector<std::vector<uint32_t>>{{5, 7}, {10}}));
  most_joint_elements_ = 31;  // 5 does not fit at all; the others do
  EXPECT_EQ(GroupsOf(TableOf(Encode(next, Coding::kStep))),
            (std::vector<std::vector<uint32_t>>{{5}, {7, 10}}));
}

TEST_F(JointUpdateTest, EveryCodingAndDensityWithUncertainElements) {
  for (const auto coding : {Coding::kClass, Coding::kStep, Coding::kAbsolute}) {
    for (const double density : {1e-4, 0.003, 0.05, 1.0}) {
      for (const double uncertain : {0.0, 1e-3, 0.1}) {
        SCOPED_TRACE(testing::Message()
                     << static_cast<int>(coding) << ", density " << density << ", uncertain " << uncertain);
        const std::vector<Bytes> before = engine_;
        const auto staged = Stage(Advance(density, coding, false, uncertain));
        ASSERT_TRUE(staged) << staged.error().message();
        ASSERT_EQ(engine_, before);
        ASSERT_TRUE(replica_->Commit());
        ASSERT_EQ(engine_, model_.bits);
        ASSERT_TRUE(replica_->Verify());
        ASSERT_TRUE(replica_->Undo());
        ASSERT_EQ(engine_, before);
        ASSERT_TRUE(replica_->Verify());
        model_.bits = engine_;
      }
    }
  }
}

// Which tensors share a block differs from version to version, and so does what is staged over each.
TEST_F(JointUpdateTest, AChainOfVersionsIsOneCommit) {
  const std::vector<Bytes> before = engine_;
  for (int version = 0; version < 12; ++version) {
    std::vector<Bytes> next = Change(0.02);
    for (size_t t = 0; t < next.size(); ++t) {
      if (rng_.Next() % 3 == 0) next[t] = model_.bits[t];
    }
    const Coding coding =
        std::array{Coding::kClass, Coding::kStep, Coding::kClass, Coding::kAbsolute}[version % 4];
    const Bytes file = Encode(next, coding, version == 5, version % 2 ? 2e-3 : 0);
    model_.bits = next;
    const auto staged = Stage(file);
    ASSERT_TRUE(staged) << version << ": " << staged.error().message();
  }
  ASSERT_EQ(engine_, before);
  ASSERT_TRUE(replica_->Commit());
  ASSERT_EQ(engine_, model_.bits);
  ASSERT_TRUE(replica_->Verify());
  ASSERT_TRUE(replica_->Undo());
  ASSERT_EQ(engine_, before);
}

// A damaged element that is listed, or that moves between classes, in any tensor of the block.
TEST_F(JointUpdateTest, OneDamagedElementIsFoundBeforeAnyWriteAndItsTensorNamed) {
  for (const auto coding : {Coding::kClass, Coding::kStep}) {
    const std::vector<Bytes> next = Change(0.05);
    const auto changes = Compare(next);
    const Bytes file = Encode(next, coding, changes);
    const auto groups = GroupsOf(TableOf(file));
    const std::vector<Bytes> intact = engine_;
    int tried = 0;
    for (const ChangedTensor& tensor : changes) {
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) {
        return g.size() > 1 && std::count(g.begin(), g.end(), tensor.tensor) > 0;
      });
      if (group == groups.end()) continue;
      const uint32_t width = DtypeBytes(model_.inventory.tensors[tensor.tensor].dtype);
      // A high bit of an element that the update changes.
      engine_[tensor.tensor][tensor.blocks[0].change.changed.back() * width + width - 1] ^= 0x20;
      const std::vector<Bytes> damaged = engine_;
      const auto staged = Stage(file);
      ASSERT_FALSE(staged);
      EXPECT_EQ(staged.error().code(), Code::kWrongBase) << staged.error().message();
      const std::string& name = model_.inventory.tensors[tensor.tensor].name;
      EXPECT_NE(staged.error().message().find("no longer as proved: tensor " + name), std::string::npos)
          << staged.error().message();
      EXPECT_NE(staged.error().message().find(fmt::format("joint block of {} tensors", group->size())),
                std::string::npos);
      EXPECT_FALSE(replica_->has_staged());
      EXPECT_EQ(engine_, damaged);
      engine_ = intact;
      ++tried;
    }
    EXPECT_GE(tried, 6);
  }
}

TEST_F(JointUpdateTest, AChangeThatDetectionMissedInOneTensorIsADetectorFault) {
  for (const auto coding : {Coding::kClass, Coding::kStep, Coding::kAbsolute}) {
    const std::vector<Bytes> next = Change(0.05);
    auto changes = Compare(next);
    const auto missed =
        std::find_if(changes.begin(), changes.end(), [](const auto& tensor) { return tensor.tensor == 6; });
    ASSERT_NE(missed, changes.end());
    BlockChange& change = missed->blocks[0].change;
    ASSERT_GT(change.changed.size(), 1u);
    change.changed.pop_back();
    change.old_bits.resize(change.changed.size() * 2);
    change.new_bits.resize(change.changed.size() * 2);
    // The served bits have the change, which the ranks of class coding are told of.
    const auto staged = Stage(Encode(next, coding, changes));
    ASSERT_FALSE(staged);
    const bool moved_class = coding == Coding::kClass && staged.error().code() == Code::kWrongBase;
    EXPECT_TRUE(moved_class || staged.error().code() == Code::kDetectorFault) << staged.error().message();
    EXPECT_NE(staged.error().message().find("joint block of"), std::string::npos);
    EXPECT_FALSE(replica_->has_staged());
  }
}

TEST_F(JointUpdateTest, CopiesThatDisagreeAndViewsOfAnyStridesAreSeenByTensor) {
  // "d.weight" twice, once transposed in memory.
  std::vector<ReplicaTensor> tensors;
  for (uint32_t t = 0; t < engine_.size(); ++t) tensors.push_back({{model_.View(t, engine_)}});
  const auto memory = AllocateHost(engine_[6].size());
  TensorView transposed = TensorView::RowMajor(memory, 0, Dtype::kBf16, {130, 170});
  transposed.strides = {1, 130};
  const Box whole = WholeBox({130, 170});
  const device::Block copy(model_.backends, transposed, whole, device::CastOfWidth(2), DigestKey("d.weight"));
  copy.Write(engine_[6]);
  for (const bool transposed_first : {false, true}) {
    tensors[6].views = {model_.View(6, engine_), transposed};
    if (transposed_first) std::swap(tensors[6].views[0], tensors[6].views[1]);
    auto replica = Replica::Attach(model_.backends, model_.inventory, *model_.grid, tensors, Parallel(2));
    ASSERT_TRUE(replica) << replica.error().message();
    const std::vector<Bytes> next = Change(0.05);
    for (const auto coding : {Coding::kClass, Coding::kStep}) {
      const Bytes file = Encode(next, coding, false, 1e-3);
      const auto decoded = DecodeUpdate(file, model_.inventory, *model_.grid, Parallel(2));
      ASSERT_TRUE(decoded);
      ASSERT_TRUE(replica->Stage(*decoded));
      ASSERT_TRUE(replica->Commit());
      EXPECT_EQ(engine_, next);
      Bytes bits(engine_[6].size());
      copy.Read(bits);
      EXPECT_EQ(bits, next[6]);
      ASSERT_TRUE(replica->Undo());
      copy.Read(bits);
      EXPECT_EQ(bits, engine_[6]);
      // All of a copy damaged: whatever the update lists of it differs.
      auto* const damaged = static_cast<uint8_t*>(memory->handle());
      for (size_t i = 0; i < memory->size_bytes(); ++i) damaged[i] ^= 1;
      const auto refused = replica->Stage(*decoded);
      ASSERT_FALSE(refused);
      EXPECT_NE(refused.error().message().find("tensor d.weight"), std::string::npos)
          << refused.error().message();
      for (size_t i = 0; i < memory->size_bytes(); ++i) damaged[i] ^= 1;
    }
  }
}

TEST_F(JointUpdateTest, ATensorThatItsGridCutsCantBeJoined) {
  format::BlockEntry entry{.tensor = 3, .box = WholeBox({60, 130}), .joined = {4}};
  EXPECT_EQ(MembersOf(entry, model_.inventory, *model_.grid).error().code(), Code::kUnsupported);
  entry.joined = {5, 7};
  EXPECT_EQ(MembersOf(entry, model_.inventory, *model_.grid),
            (std::vector<BlockMember>{{3, 0, 0, 7800}, {5, 0, 7800, 130}, {7, 0, 7930, 1}}));
}

TEST_F(JointUpdateTest, AnUnknownCodingIsUnsupportedAndTheMessageSaysSo) {
  const Bytes file = Encode(Move({5, 7, 10}), Coding::kStep);
  const auto parsed = format::ParseUpdate(file).value();
  format::BlockTable table = TableOf(file);
  table.blocks[0].coding = 9;
  const auto built =
      format::BuildUpdate(parsed.header, table, parsed.blocks, parsed.entropy, model_.inventory);
  ASSERT_TRUE(built);
  const auto decoded = DecodeUpdate(built->file, model_.inventory, *model_.grid, Parallel(1));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code(), Code::kUnsupported);
  EXPECT_NE(decoded.error().message().find("joint block of 3 tensors, d.bias to g: coding 9"),
            std::string::npos)
      << decoded.error().message();
}

Tensors ManyTensors(uint32_t count, const Shape& shape, Dtype dtype) {
  Tensors tensors;
  for (uint32_t i = 0; i < count; ++i) {
    tensors.push_back({.name = fmt::format("t{:05}", i), .dtype = dtype, .shape = shape});
  }
  return tensors;
}

class TwentyThousandTensorsTest : public JointUpdateTest {
 protected:
  TwentyThousandTensorsTest() : JointUpdateTest(ManyTensors(20'000, {}, Dtype::kBf16)) {}
};

TEST_F(TwentyThousandTensorsTest, OfOneElementEachAreOneBlockCloseToItsPayload) {
  for (const auto coding : {Coding::kClass, Coding::kStep}) {
    std::vector<Bytes> next = model_.bits;
    for (Bytes& bits : next) bits[0] ^= 1;
    const Bytes file = Encode(next, coding);
    EXPECT_EQ(TableOf(file).blocks.size(), 1u);
    EXPECT_LT(file.size(), 20'000u);  // 24 bytes each alone
    model_.bits = next;
    const auto staged = Stage(file);
    ASSERT_TRUE(staged) << staged.error().message();
    ASSERT_TRUE(replica_->Commit());
    ASSERT_EQ(engine_, model_.bits);
  }
}

class SmallTensorsTest : public JointUpdateTest {
 protected:
  SmallTensorsTest() : JointUpdateTest(ManyTensors(12, {4000}, Dtype::kBf16)) {}
};

// Random bits, dense tensors between them. The plain form of a list of all elements is hardly larger than the
// bits; two lists of half of them each are.
TEST_F(SmallTensorsTest, WhatDoesNotCompressFallsApartIntoDenseBlocks) {
  for (const double uncertain : {0.0, 0.5}) {
    for (const auto coding : {Coding::kClass, Coding::kStep}) {
      std::vector<Bytes> next = model_.bits;
      for (Bytes& bits : next) {
        for (uint8_t& byte : bits) byte = static_cast<uint8_t>(rng_.Next());
      }
      std::vector<ChangedTensor> changes = Compare(next, false, uncertain);
      for (const size_t t : {3, 7}) {
        changes[t].blocks[0].change = {};
        changes[t].blocks[0].change.dense = true;
        changes[t].blocks[0].change.dense_bits = next[t];
      }
      const Bytes file = Encode(next, coding, changes);
      const auto table = TableOf(file);
      const auto dense = std::count_if(table.blocks.begin(), table.blocks.end(), [](const auto& block) {
        return block.coding == format::kDenseCoding;
      });
      EXPECT_EQ(dense, uncertain > 0 ? 12 : 2);
      EXPECT_EQ(table.blocks.size(), uncertain > 0 ? 12u : 3u);
      EXPECT_EQ(table.tensors.size(), static_cast<size_t>(dense));
      EXPECT_LT(file.size(), 12 * 4000 * 2 + 12 * 30 + 1500);
      model_.bits = next;
      const auto staged = Stage(file);
      ASSERT_TRUE(staged) << staged.error().message();
      ASSERT_TRUE(replica_->Commit());
      EXPECT_EQ(engine_, next);
    }
  }
}

class LargeTensorsTest : public JointUpdateTest {
 protected:
  LargeTensorsTest() : JointUpdateTest(ManyTensors(5, {1 << 20}, Dtype::kF8E4M3)) {}
};

TEST_F(LargeTensorsTest, ABlockHasAtMostTwoToThe21Elements) {
  std::vector<Bytes> next = model_.bits;
  for (Bytes& bits : next) bits.front() ^= 1, bits.back() ^= 1;
  for (const auto coding : {Coding::kClass, Coding::kStep, Coding::kAbsolute}) {
    const Bytes file = Encode(next, coding);
    EXPECT_EQ(GroupsOf(TableOf(file)), (std::vector<std::vector<uint32_t>>{{0, 1}, {2, 3}, {4}}));
    const auto staged = Stage(file);
    ASSERT_TRUE(staged) << staged.error().message();
    ASSERT_TRUE(replica_->Commit());
    ASSERT_EQ(engine_, next);
    ASSERT_TRUE(replica_->Undo());
  }
}

TEST(JoinBlocks, EveryBlockIsInExactlyOneAndTheyAscend) {
  constexpr uint64_t kSeed = 5;
  SeededRng rng(kSeed);
  for (int round = 0; round < 50; ++round) {
    format::Inventory inventory;
    const uint64_t largest = uint64_t{1} << (1 + rng.Next() % 12);
    for (int i = 0; i < 60; ++i) {
      const Dtype dtype = std::array{Dtype::kBf16, Dtype::kF32, Dtype::kF8E4M3}[rng.Next() % 3];
      const Shape shape = {1 + rng.Next() % largest, 2};
      const Grid grid = rng.Next() % 5 == 0 ? Grid{1, 2} : Grid{};
      inventory.tensors.push_back(
          {.name = fmt::format("{:02}", i), .dtype = dtype, .shape = shape, .grid = grid});
    }
    const GridIndex grid(inventory);
    std::vector<ChangedTensor> tensors;
    size_t blocks = 0;
    for (uint32_t t = 0; t < 60; ++t) {
      if (rng.Next() % 4 == 0) continue;
      ChangedTensor tensor{t, {}, {}};
      for (uint32_t b = 0; b < grid.boxes(t).size(); ++b) {
        BlockChange change;
        change.changed = {0};
        tensor.blocks.push_back({b, change, {}});
      }
      blocks += tensor.blocks.size();
      tensors.push_back(std::move(tensor));
    }
    const uint64_t most = rng.Next() % (4 * largest);
    const auto joined = JoinBlocks(inventory, grid, tensors, most);
    size_t members = 0;
    std::pair<uint32_t, uint32_t> before{0, 0};
    for (size_t i = 0; i < joined.size(); ++i) {
      const JointBlock& block = joined[i];
      uint64_t elements = 0;
      for (const ChangedMember& member : block.members) {
        elements += member.elements;
        EXPECT_EQ(DtypeBytes(inventory.tensors[member.tensor->tensor].dtype), block.width);
        EXPECT_TRUE(block.members.size() == 1 || grid.boxes(member.tensor->tensor).size() == 1);
      }
      members += block.members.size();
      EXPECT_EQ(elements, block.elements);
      EXPECT_TRUE(block.members.size() == 1 || elements <= most);
      EXPECT_TRUE(
          std::is_sorted(block.members.begin(), block.members.end(),
                         [](const auto& a, const auto& b) { return a.tensor->tensor < b.tensor->tensor; }));
      const std::pair place{block.members[0].tensor->tensor, block.members[0].block->block};
      EXPECT_TRUE(i == 0 || before < place);
      before = place;
    }
    EXPECT_EQ(members, blocks) << "seed " << kSeed << " round " << round;
  }
}

}  // namespace
}  // namespace deltawire::delta
