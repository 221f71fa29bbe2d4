#include "delta/block_member.h"

#include <gtest/gtest.h>

namespace deltawire::delta {
namespace {

TEST(BlockMember, PartsOfAListAreAllOfIt) {
  const std::vector<uint32_t> list = {0, 4, 5, 6, 12, 13};
  const BlockMember members[] = {{0, 0, 0, 5}, {1, 0, 5, 1}, {2, 0, 6, 0}, {3, 0, 6, 6}, {4, 0, 12, 2}};
  const size_t ends[] = {2, 3, 3, 4, 6};
  size_t from = 0;
  for (size_t i = 0; i < std::size(members); ++i) {
    const ListRange range = RangeOf(members[i], list, from);
    EXPECT_EQ(range.begin, from);
    EXPECT_EQ(range.end, ends[i]) << i;
    const ListRange again = RangeOf(members[i], list);
    EXPECT_EQ(again.begin, range.begin);
    EXPECT_EQ(again.end, range.end);
    from = range.end;
  }
  EXPECT_EQ(PositionsIn(members[4], list, {4, 6}), (std::vector<uint32_t>{0, 1}));
}

TEST(BlockMember, ChangesOfOneMember) {
  codec::Decoded changes;
  changes.width = 2;
  changes.steps = true;
  changes.changed = {1, 5, 9};
  changes.values = {1, 0, 2, 0, 3, 0};
  changes.uncertain = {4, 6};
  changes.uncertain_residue = {3, 0xFF};
  changes.uncertain_bits = {0, 0, 7, 8};
  changes.populations = {10};
  const codec::Decoded part = ChangesOf({2, 0, 5, 4}, changes);
  EXPECT_TRUE(part.steps);
  EXPECT_EQ(part.width, 2u);
  EXPECT_EQ(part.changed, (std::vector<uint32_t>{0}));
  EXPECT_EQ(part.values, (Bytes{2, 0}));
  EXPECT_EQ(part.uncertain, (std::vector<uint32_t>{1}));
  EXPECT_EQ(part.uncertain_residue, (std::vector<uint8_t>{0xFF}));
  EXPECT_EQ(part.uncertain_bits, (Bytes{7, 8}));
  EXPECT_TRUE(part.populations.empty());
}

}  // namespace
}  // namespace deltawire::delta
