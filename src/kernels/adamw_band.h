// Hyperparameters of one AdamW step -> constants of the guarded inversion. Proof: docs/numerics.md.
#pragma once

#include <cstdint>
#include <string_view>

#include <tl/expected.hpp>

#include "kernels/kernels.h"

namespace deltawire::kernels {

// What the step used, as the numbers its kernel read (a float32 lr tensor is widened from its float32 value).
struct AdamwHyper {
  double lr = 0;
  double weight_decay = 0;  // decoupled; 0 for L2 mode, whose decay is already inside m and v
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  uint64_t step = 0;  // the counter after the step: 1 for the first
  bool bias_correction = true;
};

// Relative error of u that stored moments add when the step's kernel computed in float32 and rounded them to
// nearest afterwards (delta_m of docs/numerics.md, which derives them).
inline constexpr double kFloat32Moments = 0.0;
inline constexpr double kBf16M = 0.0040;
inline constexpr double kBf16V = 0.0020;
inline constexpr double kBf16Moments = 0.0060;

constexpr double MomentError(bool m_is_bf16, bool v_is_bf16) {
  if (m_is_bf16) return v_is_bf16 ? kBf16Moments : kBf16M;
  return v_is_bf16 ? kBf16V : kFloat32Moments;
}

// The band, or which precondition of the proof fails (a phrase for a report; static storage). Then the
// inversion does not apply and the caller takes the next sound detector.
tl::expected<AdamwBand, std::string_view> MakeAdamwBand(const AdamwHyper& hyper,
                                                        double moment_error = kFloat32Moments);

}  // namespace deltawire::kernels
