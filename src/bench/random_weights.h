// Synthetic weights and optimizer state.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"
#include "base/parallel.h"
#include "tensor/tensor_view.h"

namespace deltawire::bench {

// Near-normal numbers (the sum of four uniform ones: mean 0, deviation 1, nothing beyond 3.5), the same for
// the same seed. Not on any grid of BF16 or of round fractions.
class NearNormal {
 public:
  explicit NearNormal(uint64_t seed) : state_(seed) {}

  uint64_t Word() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  float Next() {
    const uint64_t word = Word();
    const auto sum =
        static_cast<int64_t>((word & 0xFFFF) + (word >> 16 & 0xFFFF) + (word >> 32 & 0xFFFF) + (word >> 48)) -
        131070;
    const auto below = static_cast<float>(word * 0xD1342543DE82EF95 >> 40) * 0x1p-24f;
    return (static_cast<float>(sum) + below) * (1 / 37837.2f);
  }

 private:
  uint64_t state_;
};

// A row-major tensor placed as malloc, and so torch, places large ones: 64 bytes into pages that have one
// page more than the elements need. Bare mappings of sizes that are powers of two would lie at equal
// distances, and streams over them fight for the same cache sets: AdamW inversion then took 1.6 times as long
// (docs/benchmarks.md).
TensorView AllocateTensor(Dtype dtype, Shape shape);
// The bytes, and for F32 the elements, of such a tensor.
ByteSpan BytesOf(const TensorView& view);
std::span<float> FloatsOf(const TensorView& view);

// mean + deviation * near-normal, into all of `out`.
void FillNormal(std::span<float> out, float mean, float deviation, uint64_t seed, const Parallel& parallel);

// Moments as AdamW (betas 0.9, 0.999) has them after long training on noise of size `gradient`.
void FillMoments(std::span<float> m, std::span<float> v, float gradient, uint64_t seed,
                 const Parallel& parallel);

}  // namespace deltawire::bench
