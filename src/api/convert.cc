#include "api/convert.h"

#include <algorithm>

namespace deltawire::api {

ErrorInfo ToErrorInfo(const Error& error) { return {std::string(CodeName(error.code())), error.message()}; }

VersionInfo ToVersionInfo(const pubsub::Version& version) {
  return {.number = version.number,
          .base = version.base,
          .digest = version.digest.Hex(),
          .steps = version.steps,
          .changed = version.changed,
          .uncertain = version.uncertain,
          .sent = version.sent,
          .total = version.total,
          .bytes = version.bytes,
          .seconds = version.seconds,
          .notes = version.notes};
}

Expected<VersionInfo> ToExpected(const Result<pubsub::Version>& version) {
  if (!version) return ToErrorInfo(version.error());
  return ToVersionInfo(*version);
}

Expected<Done> ToExpected(const Status& status) {
  if (!status) return ToErrorInfo(status.error());
  return Done{};
}

Result<TensorView> HostView(const std::string& name, void* data, const std::string& dtype,
                            const std::vector<uint64_t>& shape, const std::vector<int64_t>& strides) {
  const auto type = DtypeFromName(dtype);
  if (!type) {
    return Fail(Code::kInvalidArgument,
                "tensor {}: unknown dtype \"{}\"; use safetensors' spelling, e.g. \"BF16\"", name, dtype);
  }
  const auto count = ElementCount(shape);
  if (!count) return Fail(Code::kInvalidArgument, "tensor {}: shape {} overflows", name, ShapeText(shape));
  TensorView view = TensorView::RowMajor(nullptr, 0, *type, shape);
  if (!strides.empty()) view.strides = strides;
  if (view.strides.size() != shape.size()) {
    return Fail(Code::kInvalidArgument, "tensor {}: {} strides for shape {}", name, view.strides.size(),
                ShapeText(shape));
  }
  // The storage is what the view reaches: from its lowest element to its highest.
  int64_t low = 0;
  int64_t high = 0;
  for (size_t d = 0; d < shape.size() && *count > 0; ++d) {
    const int64_t reach = static_cast<int64_t>(shape[d] - 1) * view.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const uint64_t width = DtypeBytes(*type);
  view.offset_bytes = static_cast<uint64_t>(-low) * width;
  const uint64_t bytes = *count == 0 ? 0 : static_cast<uint64_t>(high - low + 1) * width;
  view.memory = BorrowHost(static_cast<uint8_t*>(data) - view.offset_bytes, bytes);
  return view;
}

}  // namespace deltawire::api
