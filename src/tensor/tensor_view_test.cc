#include "tensor/tensor_view.h"

#include <gtest/gtest.h>

namespace deltawire {
namespace {

TEST(TensorView, RowMajorIgnoresStridesOfUnitExtents) {
  TensorView view = TensorView::RowMajor(AllocateHost(64), 0, Dtype::kF32, {4, 1, 4});
  view.strides[1] = 99;
  EXPECT_TRUE(view.IsRowMajor());
  view.strides[0] = 5;
  EXPECT_FALSE(view.IsRowMajor());
}

TEST(TensorView, InsideCountsNegativeStridesAndOffsets) {
  TensorView view{AllocateHost(16), 14, Dtype::kBf16, {8}, {-1}};
  EXPECT_TRUE(CheckInside(view, "w"));
  view.offset_bytes = 12;
  EXPECT_FALSE(CheckInside(view, "w"));
}

TEST(TensorView, WritableRefusesSharedElements) {
  const auto memory = AllocateHost(1024);
  EXPECT_TRUE(CheckWritable({memory, 0, Dtype::kBf16, {4, 8}, {1, 4}}, "transposed"));
  EXPECT_TRUE(CheckWritable({memory, 0, Dtype::kBf16, {4, 4}, {16, 2}}, "strided slice"));
  EXPECT_TRUE(CheckWritable({memory, 0, Dtype::kBf16, {2, 1}, {1, 0}}, "unit extent"));
  EXPECT_FALSE(CheckWritable({memory, 0, Dtype::kBf16, {4, 8}, {0, 1}}, "expanded"));
  EXPECT_FALSE(CheckWritable({memory, 0, Dtype::kBf16, {4, 8}, {4, 1}}, "overlapping rows"));
}

TEST(Memory, MapFileNamesWhatIsMissing) {
  const auto mapped = MapFile("/proc/self/no-such-file", false);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace deltawire
