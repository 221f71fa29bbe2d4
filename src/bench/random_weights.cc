#include "bench/random_weights.h"

#include <algorithm>

namespace deltawire::bench {

void FillNormal(std::span<float> out, float mean, float deviation, uint64_t seed, const Parallel& parallel) {
  constexpr uint64_t kPiece = 1 << 20;
  parallel.For((out.size() + kPiece - 1) / kPiece, [&](uint64_t piece) {
    NearNormal random(seed + (piece << 32));
    const auto part = out.subspan(piece * kPiece, std::min<uint64_t>(kPiece, out.size() - piece * kPiece));
    for (float& value : part) value = mean + deviation * random.Next();
  });
}

void FillMoments(std::span<float> m, std::span<float> v, float gradient, uint64_t seed, const Parallel& parallel) {
  // A mean of independent gradients with weights (1 - b) b^i has deviation sqrt((1 - b) / (1 + b)).
  FillNormal(m, 0, gradient * 0.2294f, seed, parallel);
  FillNormal(v, gradient * gradient, gradient * gradient * 0.0316f, ~seed, parallel);
}

}  // namespace deltawire::bench
