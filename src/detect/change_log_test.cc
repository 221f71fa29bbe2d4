#include "detect/change_log.h"

#include <gtest/gtest.h>

namespace deltawire::detect {
namespace {

TEST(ChangeLog, UnionKeepsTheOlderBase) {
  const ChangeLog older = {{1, 10, Base::kCertified}, {5, 50, Base::kUnknown}, {9, 90, Base::kNeighbour}};
  const ChangeLog newer = {{0, 1, Base::kCertified},
                           {5, 51, Base::kCertified},
                           {9, 91, Base::kUnknown},
                           {12, 3, Base::kCertified}};
  const ChangeLog merged = Merge(older, newer);
  ASSERT_EQ(merged.size(), 5u);
  const uint32_t positions[] = {0, 1, 5, 9, 12};
  const uint32_t bits[] = {1, 10, 50, 90, 3};
  const Base bases[] = {Base::kCertified, Base::kCertified, Base::kUnknown, Base::kNeighbour,
                        Base::kCertified};
  for (size_t i = 0; i < merged.size(); ++i) {
    EXPECT_EQ(merged[i].position, positions[i]);
    EXPECT_EQ(merged[i].bits, bits[i]);
    EXPECT_EQ(merged[i].base, bases[i]);
  }
  EXPECT_EQ(Merge({}, newer).size(), newer.size());
  EXPECT_EQ(Merge(older, {}).size(), older.size());
}

}  // namespace
}  // namespace deltawire::detect
