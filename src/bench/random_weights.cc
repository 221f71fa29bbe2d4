#include "bench/random_weights.h"

#include <algorithm>
#include <utility>

namespace deltawire::bench {

TensorView AllocateTensor(Dtype dtype, Shape shape) {
  constexpr uint64_t kHeader = 64;
  constexpr uint64_t kPage = 4096;
  const uint64_t bytes = *ElementCount(shape) * DtypeBytes(dtype);
  return TensorView::RowMajor(AllocateHost(bytes + kPage), kHeader, dtype, std::move(shape));
}

ByteSpan BytesOf(const TensorView& view) {
  return {static_cast<const uint8_t*>(view.memory->handle()) + view.offset_bytes,
          *ElementCount(view.shape) * DtypeBytes(view.dtype)};
}

std::span<float> FloatsOf(const TensorView& view) {
  return {reinterpret_cast<float*>(static_cast<uint8_t*>(view.memory->handle()) + view.offset_bytes),
          *ElementCount(view.shape)};
}

void FillNormal(std::span<float> out, float mean, float deviation, uint64_t seed, const Parallel& parallel) {
  constexpr uint64_t kPiece = 1 << 20;
  parallel.For((out.size() + kPiece - 1) / kPiece, [&](uint64_t piece) {
    NearNormal random(seed + (piece << 32));
    const auto part = out.subspan(piece * kPiece, std::min<uint64_t>(kPiece, out.size() - piece * kPiece));
    for (float& value : part) value = mean + deviation * random.Next();
  });
}

void FillMoments(std::span<float> m, std::span<float> v, float gradient, uint64_t seed,
                 const Parallel& parallel) {
  // A mean of independent gradients with weights (1 - b) b^i has deviation sqrt((1 - b) / (1 + b)).
  FillNormal(m, 0, gradient * 0.2294f, seed, parallel);
  FillNormal(v, gradient * gradient, gradient * gradient * 0.0316f, ~seed, parallel);
}

}  // namespace deltawire::bench
