#include "tensor/tensor_view.h"

#include <algorithm>
#include <cstdlib>

namespace deltawire {

bool TensorView::IsRowMajor() const {
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= static_cast<int64_t>(shape[d]);
  }
  return true;
}

TensorView TensorView::RowMajor(std::shared_ptr<Memory> memory, uint64_t offset_bytes, Dtype dtype,
                                Shape shape) {
  TensorView view{std::move(memory), offset_bytes, dtype, std::move(shape), {}};
  view.strides = RowMajorStrides(view.shape);
  return view;
}

Status CheckInside(const TensorView& view, const std::string& name) {
  if (view.strides.size() != view.shape.size()) {
    return Fail(Code::kInvalidArgument, "tensor {}: {} strides for shape {}", name, view.strides.size(),
                ShapeText(view.shape));
  }
  const auto count = ElementCount(view.shape);
  if (!count) {
    return Fail(Code::kInvalidArgument, "tensor {}: shape {} overflows", name, ShapeText(view.shape));
  }
  if (*count == 0) return {};
  __int128 low = 0;
  __int128 high = 0;
  for (size_t d = 0; d < view.shape.size(); ++d) {
    const __int128 reach = static_cast<__int128>(view.shape[d] - 1) * view.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const __int128 width = DtypeBytes(view.dtype);
  const __int128 first = static_cast<__int128>(view.offset_bytes) + low * width;
  const __int128 end = static_cast<__int128>(view.offset_bytes) + (high + 1) * width;
  if (first < 0 || end > static_cast<__int128>(view.memory->size_bytes())) {
    return Fail(Code::kInvalidArgument,
                "tensor {}: shape {} at byte {} reaches outside its storage of {} bytes", name,
                ShapeText(view.shape), view.offset_bytes, view.memory->size_bytes());
  }
  return {};
}

Status CheckWritable(const TensorView& view, const std::string& name) {
  // Sorted by stride, each dimension must step over everything the smaller ones span. This refuses a few
  // odd but disjoint layouts; none of them is an ordinary slice, transpose, pad or channels-last view.
  struct Dimension {
    uint64_t stride;
    uint64_t extent;
  };
  std::vector<Dimension> dimensions;
  for (size_t d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] == 0) return {};
    if (view.shape[d] > 1) {
      dimensions.push_back({static_cast<uint64_t>(std::llabs(view.strides[d])), view.shape[d]});
    }
  }
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  uint64_t span = 1;
  for (const auto& [stride, extent] : dimensions) {
    if (stride < span) {
      return Fail(Code::kInvalidArgument,
                  "tensor {}: elements of its view (shape {}) share memory, so it can't be updated in "
                  "place; give a contiguous or sliced tensor",
                  name, ShapeText(view.shape));
    }
    span = stride * (extent - 1) + span;
  }
  return {};
}

}  // namespace deltawire
