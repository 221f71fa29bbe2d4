// A reader that fetches some blocks of a part sees what a reader of the whole part sees, or an error.
#include "pubsub/ranged_part.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/hash.h"
#include "delta/update_test.h"
#include "store/memory/memory_store.h"

namespace deltawire::pubsub {
namespace {

using codec::Coding;

constexpr std::string_view kObject = "updates/00000001/a-part-00000.safetensors";

class RangedPart : public delta::UpdateTest {
 protected:
  RangedPart()
      : UpdateTest({{.name = "a", .dtype = Dtype::kBf16, .shape = {512, 300}, .grid = {0, 4}},
                    {.name = "b", .dtype = Dtype::kBf16, .shape = {700}},
                    {.name = "c", .dtype = Dtype::kBf16, .shape = {400, 300}},
                    {.name = "d", .dtype = Dtype::kBf16, .shape = {30, 20}},
                    {.name = "e", .dtype = Dtype::kF32, .shape = {200}}}) {}

  // Stores a part.
  void Store(Bytes file) {
    file_ = std::move(file);
    const auto parsed = format::ParseUpdate(file_).value();
    part_ = {{std::string(kObject), file_.size(), ToHex(Sha256(file_))},
             "step",
             {parsed.table_offset, parsed.table.size(), ToHex(Sha256(parsed.table))}};
    Put(file_);
  }
  void Put(ByteSpan bytes) {
    store_ = std::make_unique<MemoryStore>();
    ASSERT_TRUE(store_->Put(kObject, bytes, Condition::kIfAbsent));
  }
  Result<RangedBlocks> Read(std::vector<uint32_t> tensors) {
    return ReadRanges(*store_, part_, tensors, model_.inventory, *model_.grid, Parallel(2));
  }
  // The same blocks, as the reader of the whole file has them.
  void ExpectBlocksOf(const std::vector<uint32_t>& tensors, const RangedBlocks& found) {
    const auto whole = delta::DecodeUpdate(file_, model_.inventory, *model_.grid, Parallel(2)).value();
    size_t i = 0;
    for (const auto& block : whole.blocks) {
      if (std::none_of(block.members.begin(), block.members.end(), [&](const auto& member) {
            return std::count(tensors.begin(), tensors.end(), member.tensor) > 0;
          })) {
        continue;
      }
      ASSERT_LT(i, found.blocks.size());
      const auto& ranged = found.blocks[i++];
      EXPECT_EQ(ranged.members, block.members);
      EXPECT_EQ(ranged.after, block.after);
      EXPECT_EQ(ranged.dense, block.dense);
      EXPECT_TRUE(std::ranges::equal(ranged.dense_bits, block.dense_bits));
      EXPECT_EQ(ranged.changes.changed, block.changes.changed);
      EXPECT_EQ(ranged.changes.values, block.changes.values);
      EXPECT_EQ(ranged.changes.classes.ranks, block.changes.classes.ranks);
    }
    EXPECT_EQ(i, found.blocks.size());
  }

  Bytes file_;
  format::ManifestPart part_;
  std::unique_ptr<MemoryStore> store_;
};

TEST_F(RangedPart, EachSetOfTensorsInEachCoding) {
  for (const Coding coding : {Coding::kClass, Coding::kStep, Coding::kAbsolute}) {
    for (const bool joined : {false, true}) {
      most_joint_elements_ = joined ? kMaxBlockElements : 0;
      Store(Advance(0.02, coding, false, 0.001));
      for (const std::vector<uint32_t>& tensors :
           {std::vector<uint32_t>{}, {0}, {1}, {2, 4}, {0, 1, 2, 3, 4}, {3}}) {
        const auto found = Read(tensors);
        ASSERT_TRUE(found) << found.error().message();
        ExpectBlocksOf(tensors, *found);
      }
    }
  }
}

TEST_F(RangedPart, OnlyWhatIsWantedIsRead) {
  Store(Advance(0.02, Coding::kStep, true));  // dense: the tensors have 307, 1, 240 and 1 KB
  const auto last = Read({3});
  ASSERT_TRUE(last);
  EXPECT_LT(last->bytes_read, 3000);
  EXPECT_LE(last->reads, 3);
  const auto ends = Read({0, 3});
  ASSERT_TRUE(ends);
  ExpectBlocksOf({0, 3}, *ends);
  EXPECT_LT(ends->bytes_read, 320'000);  // not c between them
}

TEST_F(RangedPart, NothingChanged) {
  Store(Advance(0, Coding::kStep));
  const auto found = Read({0, 1, 2, 3, 4});
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_TRUE(found->blocks.empty());
}

TEST_F(RangedPart, AFlippedBitIsSeenWhereItIsRead) {
  most_joint_elements_ = 0;
  Store(Advance(0.001, Coding::kClass));
  const std::vector<uint32_t> tensors{1, 3};
  const auto good = Read(tensors);
  ASSERT_TRUE(good);
  ASSERT_FALSE(good->blocks.empty());
  const auto parsed = format::ParseUpdate(file_).value();
  size_t seen = 0;
  for (size_t at = parsed.blocks_offset; at < file_.size(); ++at) {
    Bytes flipped = file_;
    flipped[at] ^= static_cast<uint8_t>(1 << at % 8);
    Put(flipped);
    const auto found = Read(tensors);
    if (found) {
      ExpectBlocksOf(tensors, *found);
    } else {
      EXPECT_EQ(found.error().code(), Code::kCorrupt);
      EXPECT_NE(found.error().message().find(kObject), std::string::npos);
      ++seen;
    }
  }
  EXPECT_GE(seen, parsed.table.size() + parsed.entropy.size());
  EXPECT_LT(seen, file_.size() - parsed.blocks_offset);  // other tensors' blocks are none of its business
}

TEST_F(RangedPart, ATruncatedObjectAndATableElsewhereAreCorrupt) {
  Store(Advance(0.01, Coding::kStep));
  Put(ByteSpan(file_).first(file_.size() - 1));
  EXPECT_EQ(Read({0}).error().code(), Code::kCorrupt);
  Put(file_);
  part_.table.offset -= 1;
  EXPECT_EQ(Read({0}).error().code(), Code::kCorrupt);
  // A table that is right, but before which its blocks do not fit.
  const auto parsed = format::ParseUpdate(file_).value();
  Put(parsed.table);
  part_.table.offset = 0;
  EXPECT_EQ(Read({0}).error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace deltawire::pubsub
