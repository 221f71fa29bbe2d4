#include "delta/staged_block.h"

#include <gtest/gtest.h>

namespace deltawire::delta {
namespace {

TEST(StagedBlock, MergeKeepsLiveOldBitsAndLastNewBits) {
  StagedBlock staged;
  staged.positions = {2, 5};
  staged.old_bits = {20, 50};
  staged.new_bits = {21, 51};
  const StagedBlock out = MergeStaged(&staged, {1, 5, 9}, Bytes{10, 50, 90}, Bytes{11, 52, 91}, 1);
  EXPECT_EQ(out.positions, (std::vector<uint32_t>{1, 2, 5, 9}));
  EXPECT_EQ(out.old_bits, (Bytes{10, 20, 50, 90}));
  EXPECT_EQ(out.new_bits, (Bytes{11, 21, 52, 91}));
}

TEST(StagedBlock, OverlayAnswersOnlyWhatIsStaged) {
  StagedBlock staged;
  staged.positions = {2, 5};
  staged.new_bits = {1, 2, 3, 4};
  Bytes bits(6, 9);
  Overlay(&staged, std::vector<uint32_t>{0, 2, 6}, 2, bits);
  EXPECT_EQ(bits, (Bytes{9, 9, 1, 2, 9, 9}));
  Overlay(nullptr, std::vector<uint32_t>{0, 2, 6}, 2, bits);
  EXPECT_EQ(bits, (Bytes{9, 9, 1, 2, 9, 9}));
}

TEST(StagedBlock, DenseStagingTakesSparseChangesOnTop) {
  StagedBlock staged;
  staged.dense = true;
  staged.old_bits = {0, 0, 0};
  staged.new_bits = {1, 2, 3};
  const StagedBlock out = MergeStaged(&staged, {1}, Bytes{0}, Bytes{7}, 1);
  EXPECT_TRUE(out.dense);
  EXPECT_EQ(out.new_bits, (Bytes{1, 7, 3}));
  EXPECT_EQ(out.old_bits, (Bytes{0, 0, 0}));
}

}  // namespace
}  // namespace deltawire::delta
