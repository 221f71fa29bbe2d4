// A live tensor: where its elements are in some memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/memory.h"
#include "tensor/shape.h"

namespace deltawire {

// Element (i0, i1, ...) is at offset_bytes + DtypeBytes * sum(i_d * strides_d). shared_ptr: the views of tied
// weights share one storage, and a staged update must outlive the caller's list of views.
struct TensorView {
  std::shared_ptr<Memory> memory;
  uint64_t offset_bytes = 0;
  Dtype dtype = Dtype::kBf16;
  Shape shape;
  std::vector<int64_t> strides;  // in elements; may be 0 (expand) on sources, never on targets

  bool IsRowMajor() const;
  // Row-major view at an offset.
  static TensorView RowMajor(std::shared_ptr<Memory> memory, uint64_t offset_bytes, Dtype dtype, Shape shape);
};

// Errors when an element of the view lies outside its memory.
Status CheckInside(const TensorView& view, const std::string& name);
// Errors when two elements of the view may share bytes (strides 0 or overlapping): such a view can be read,
// not written.
Status CheckWritable(const TensorView& view, const std::string& name);

}  // namespace deltawire
