// A fold does what its updates do in turn, from wherever it may start.
#include "delta/fold.h"

#include <gtest/gtest.h>

#include <optional>

#include "delta/update_test.h"

namespace deltawire::delta {
namespace {

using codec::Coding;

class FoldTest : public UpdateTest {
 protected:
  FoldTest()
      : UpdateTest({{.name = "a", .dtype = Dtype::kBf16, .shape = {160, 100}, .grid = {0, 4}},
                    {.name = "b", .dtype = Dtype::kBf16, .shape = {70, 90}},
                    {.name = "c.scale", .dtype = Dtype::kF32, .shape = {7}},
                    {.name = "c.weight", .dtype = Dtype::kF8E4M3, .shape = {70, 90}}}),
        start_(model_.bits) {
    states_.push_back(start_);
  }

  // Updates to new versions, or back to an earlier one.
  void Publish(double density, Coding coding, bool dense = false, double uncertain = 0) {
    updates_.push_back(Advance(density, coding, dense, uncertain));
    states_.push_back(model_.bits);
  }
  void Return(size_t version, Coding coding) {
    updates_.push_back(Encode(states_[version], coding));
    model_.bits = states_[version];
    states_.push_back(model_.bits);
  }

  Result<Bytes> Folded(Coding coding) {
    std::vector<ReplicaTensor> tensors;
    for (uint32_t t = 0; t < start_.size(); ++t) tensors.push_back({{model_.View(t, start_)}});
    DELTAWIRE_ASSIGN(auto replica,
                     Replica::Attach(model_.backends, model_.inventory, *model_.grid, tensors, Parallel(2)));
    Fold fold(model_.backends, model_.inventory, *model_.grid, std::move(tensors), std::move(replica));
    for (const Bytes& update : updates_) {
      DELTAWIRE_ASSIGN(const auto decoded, DecodeUpdate(update, model_.inventory, *model_.grid, Parallel(2)));
      DELTAWIRE_TRY(fold.Add(decoded));
    }
    format::UpdateHeader header;
    header.run = "run";
    header.number = number_;
    header.writer = "w";
    header.inventory = format::InventoryHash(model_.inventory);
    DELTAWIRE_ASSIGN(const auto update, fold.Encode(header, {.coding = coding, .source = {}}, Parallel(2)));
    return update.Join();
  }

  // Stages the fold on a version; what commits must be the last one.
  std::optional<Code> Apply(const Bytes& fold, size_t version) {
    engine_ = states_[version];
    Attach();
    if (const auto staged = Stage(fold); !staged) {
      EXPECT_EQ(engine_, states_[version]);
      return staged.error().code();
    }
    EXPECT_TRUE(replica_->Commit());
    EXPECT_EQ(engine_, states_.back());
    EXPECT_TRUE(replica_->Verify());
    return std::nullopt;
  }

  std::vector<Bytes> start_;
  std::vector<std::vector<Bytes>> states_;
  std::vector<Bytes> updates_;
};

TEST_F(FoldTest, AnAbsoluteFoldStartsFromEveryStateOnTheWay) {
  Publish(0.01, Coding::kClass);
  Publish(0.02, Coding::kStep, false, 0.001);
  Publish(0.01, Coding::kAbsolute);
  Publish(0.005, Coding::kClass, false, 0.001);
  const auto fold = Folded(Coding::kAbsolute);
  ASSERT_TRUE(fold) << fold.error().message();
  for (size_t version = 0; version < 4; ++version) EXPECT_EQ(Apply(*fold, version), std::nullopt);
  const auto header = format::ParseUpdate(*fold)->header;
  EXPECT_EQ(header.more_bases.size(), 3);
  EXPECT_FALSE(format::StartsFrom(header, header.digest));
}

TEST_F(FoldTest, WhatCameBackIsStillWrittenForThoseOnTheWay) {
  Publish(0.02, Coding::kStep);
  Return(0, Coding::kStep);
  Publish(0.001, Coding::kStep);
  const auto fold = Folded(Coding::kAbsolute);
  ASSERT_TRUE(fold) << fold.error().message();
  EXPECT_EQ(Apply(*fold, 0), std::nullopt);
  EXPECT_EQ(Apply(*fold, 1), std::nullopt);  // state 2 is state 0
}

TEST_F(FoldTest, BlocksThatWereSentWholeStayWhole) {
  Publish(0.02, Coding::kStep);
  Publish(0.02, Coding::kStep, true);
  Return(0, Coding::kClass);
  Publish(0.001, Coding::kStep);
  const auto fold = Folded(Coding::kAbsolute);
  ASSERT_TRUE(fold) << fold.error().message();
  for (size_t version = 0; version < 4; ++version) EXPECT_EQ(Apply(*fold, version), std::nullopt) << version;
}

TEST_F(FoldTest, AFoldAgainstTheBaseIsTheDifference) {
  Publish(0.02, Coding::kClass);
  Publish(0.02, Coding::kStep, false, 0.001);
  Publish(0.01, Coding::kStep, true);
  Publish(0.02, Coding::kAbsolute);
  model_.bits = start_;
  for (const Coding coding : {Coding::kClass, Coding::kStep}) {
    const auto fold = Folded(coding);
    ASSERT_TRUE(fold) << fold.error().message();
    EXPECT_EQ(Apply(*fold, 0), std::nullopt);
    EXPECT_EQ(Apply(*fold, 1), Code::kWrongBase);
    // The same elements as in the direct difference, so the same streams.
    const auto table = TableOf(*fold);
    const auto direct = TableOf(Encode(states_.back(), coding));
    ASSERT_EQ(table.blocks.size(), direct.blocks.size());
    for (size_t i = 0; i < table.blocks.size(); ++i) {
      EXPECT_EQ(table.blocks[i].changed, direct.blocks[i].changed);
      EXPECT_EQ(table.blocks[i].after, direct.blocks[i].after);
    }
  }
}

TEST_F(FoldTest, NothingChangedInTheEnd) {
  Publish(0.02, Coding::kStep);
  Return(0, Coding::kStep);
  const auto fold = Folded(Coding::kClass);
  ASSERT_TRUE(fold) << fold.error().message();
  EXPECT_TRUE(TableOf(*fold).blocks.empty());
  EXPECT_EQ(Apply(*fold, 0), std::nullopt);
  const auto absolute = Folded(Coding::kAbsolute);
  ASSERT_TRUE(absolute) << absolute.error().message();
  EXPECT_EQ(Apply(*absolute, 1), std::nullopt);
}

TEST_F(FoldTest, AnUpdateThatDoesNotFollowIsRefused) {
  Publish(0.02, Coding::kStep);
  Publish(0.02, Coding::kStep);
  updates_.erase(updates_.begin());
  const auto fold = Folded(Coding::kAbsolute);
  ASSERT_FALSE(fold);
  EXPECT_EQ(fold.error().code(), Code::kWrongBase);
}

TEST_F(FoldTest, AStepUpdateWithSeveralBasesIsCorrupt) {
  const std::vector<Bytes> next = Change(0.02);
  const auto tensors = Compare(next);
  format::UpdateHeader header;
  header.run = "run";
  header.number = 1;
  header.writer = "w";
  header.inventory = format::InventoryHash(model_.inventory);
  header.base_digest = model_.StateDigest(model_.bits);
  header.digest = model_.StateDigest(next);
  header.more_bases = {header.digest};
  const auto update = EncodeUpdate(header, model_.inventory, *model_.grid, tensors,
                                   {.coding = Coding::kStep, .source = {}}, Parallel(2));
  ASSERT_TRUE(update) << update.error().message();
  const auto decoded = DecodeUpdate(update->Join(), model_.inventory, *model_.grid, Parallel(2));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace deltawire::delta
