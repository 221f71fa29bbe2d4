#include "tensor/shape.h"

#include <gtest/gtest.h>

#include <set>

namespace deltawire {
namespace {

TEST(Shape, CountsAndOverflows) {
  EXPECT_EQ(ElementCount(Shape{}), 1u);
  EXPECT_EQ(ElementCount(Shape{3, 0}), 0u);
  EXPECT_EQ(ElementCount(Shape{2, UINT64_MAX - 1}), std::nullopt);
  EXPECT_EQ(ElementCount(Shape{0, 1ull << 40, 1ull << 40}), std::nullopt);
}

TEST(Grid, BlocksCoverEveryElementOnce) {
  const struct {
    Shape shape;
    Grid grid;
  } cases[] = {
      {{}, {}},      {{0, 5}, {}},        {{7, 3}, {0, 2}},           {{7, 9}, {1, 4}},
      {{5}, {0, 5}}, {{3, 4, 5}, {2, 3}}, {{2, 1u << 21, 2}, {0, 1}},  // one row of axis 0 is above the limit
  };
  for (const auto& [shape, grid] : cases) {
    const auto blocks = GridBlocks(shape, grid);
    ASSERT_TRUE(blocks) << ShapeText(shape);
    uint64_t total = 0;
    for (size_t i = 0; i < blocks->size(); ++i) {
      const Box& a = (*blocks)[i];
      EXPECT_TRUE(BoxInside(a, shape));
      EXPECT_LE(ElementCount(a), kMaxBlockElements);
      total += ElementCount(a);
      for (size_t j = 0; j < i; ++j) {
        const Box& b = (*blocks)[j];
        bool apart = false;
        for (size_t d = 0; d < shape.size(); ++d) {
          apart |= a.start[d] >= b.start[d] + b.size[d] || b.start[d] >= a.start[d] + a.size[d];
        }
        EXPECT_TRUE(apart) << BoxText(a) << " meets " << BoxText(b);
      }
    }
    EXPECT_EQ(total, *ElementCount(shape));
  }
}

TEST(Grid, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(GridBlocks({4, 4}, {2, 1}));
  EXPECT_FALSE(GridBlocks({4, 4}, {0, 5}));
  EXPECT_FALSE(GridBlocks({4, 4}, {0, 0}));
  EXPECT_FALSE(GridBlocks({}, {0, 2}));
}

TEST(Grid, DefaultKeepsSmallTensorsWholeAndCutsLargeOnesEightWays) {
  EXPECT_EQ(DefaultGrid({1536, 576}), Grid{});
  EXPECT_EQ(DefaultGrid({49152, 576}), (Grid{0, 16}));
  EXPECT_EQ(GridBlocks({49152, 576}, {0, 16})->size(), 16u);
  EXPECT_EQ(GridBlocks({49152, 576}, {0, 8})->size(), 16u);  // eight of two each
  EXPECT_EQ(DefaultGrid({2048, 1024}), Grid{});
  EXPECT_EQ(DefaultGrid({4096, 1024}), (Grid{0, 2}));
  EXPECT_EQ(DefaultGrid({4097, 1024}), (Grid{0, 4}));
  EXPECT_EQ(DefaultGrid({3, 1 << 22}), (Grid{0, 3}));  // rows too long for a block are cut again
  EXPECT_EQ(GridBlocks({3, 1 << 22}, {0, 3})->size(), 6u);
}

}  // namespace
TEST(Shape, RunStartIsWhereABoxBeginsIfItsElementsFollowEachOther) {
  EXPECT_EQ(RunStart({}, {}), 0u);
  EXPECT_EQ(RunStart({{2, 0}, {3, 7}}, {9, 7}), 14u);
  EXPECT_EQ(RunStart({{2, 3}, {1, 4}}, {9, 7}), 17u);
  EXPECT_EQ(RunStart({{1, 2, 0}, {1, 2, 5}}, {3, 4, 5}), 30u);
  EXPECT_EQ(RunStart({{0, 3}, {2, 4}}, {9, 7}), std::nullopt);
  EXPECT_EQ(RunStart({{0, 0, 1}, {1, 2, 3}}, {3, 4, 5}), std::nullopt);
}

}  // namespace deltawire
