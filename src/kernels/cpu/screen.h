// Constants of the screen that decides nearly all elements of an inversion with 16-bit arithmetic on
// logarithms. Sufficient for "kept"; what does not pass is decided exactly. Proof: docs/numerics.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/kernels.h"

namespace deltawire::kernels {

// Logarithms are upper halves of float32 bits without the sign: 128 a binade, biased by 127 * 128.
struct Screen {
  int16_t factor;      // added to the logarithm of the operand: update and band in terms of the weight
  int16_t least;       // the least exponent of a weight that passes; what follows is relative to it
  uint16_t exponents;  // so far above it they pass
  int16_t far;         // + exponent: at most the distance to the farther edge
  int16_t close;       // + exponent: the distance to the nearer edge must be above it
};

inline constexpr double kScreenSlack = 1 + 0x1p-10;  // exceeds every rounding of the exact verdict
inline constexpr int16_t kLogOne = 127 * 128;
// Of v, for AdamW: below 2^-100 eps dominates the root, unless eps is tiny.
inline constexpr uint16_t kLogLeastV = kLogOne - 100 * 128;
inline constexpr int16_t kLogMostV = kLogOne + 100 * 128;
// Weights below 2^19: with them no moment of 2^100 or more passes, whatever v.
inline constexpr int kMostExponent = 19;

// per_operand * p bounds the update and the part `share` of it that the band adds, for an operand p (of
// logarithm `bias` too small); slope * |theta| + floor the rest of the band and the decay.
inline Screen MakeScreen(double per_operand, double share, double slope, double floor, double bias) {
  constexpr Screen kNothingPasses{0, 0, 0, 0, 0};
  // In units of the last place of the weight, whose magnitude is below 2^24 of them.
  const double rest = kScreenSlack * (slope * 0x1p24 + 0.5);
  double close = 64;
  while (close < 8 * rest || close < rest + kScreenSlack * share * 0x1p14) close *= 2;
  const double t = std::max(kScreenSlack * per_operand, 0x1p-40) * close / (close - rest);
  if (!(close <= 0x1p14 && t <= 0x1p20 && floor < 1)) return kNothingPasses;
  // The floor is at most half a unit.
  const int least = std::max(std::ilogb(floor) + 1 + 24, -80);
  if (least >= kMostExponent) return kNothingPasses;
  const int least_log = kLogOne + 128 * least;
  return {
      .factor = static_cast<int16_t>(std::ceil(128 * (std::log2(t) + 0.0861)) + 1 + bias),
      .least = static_cast<int16_t>(least_log),
      .exponents = static_cast<uint16_t>(128 * (kMostExponent - least)),
      .far = static_cast<int16_t>(least_log - 9 * 128),
      .close = static_cast<int16_t>(least_log + 128 * (std::ilogb(close) - 23) - 1),
  };
}

// Operand: m / sqrt(v), in logarithms of m less half of (v less kLogLeastV).
inline Screen MakeAdamwScreen(const AdamwBand& band) {
  const double k2 = band.k2, b = band.b;
  if (!(band.r <= 0x1p14f)) return MakeScreen(INFINITY, 0, 0, 0, 0);
  return MakeScreen((k2 + b) * band.s / std::sqrt(static_cast<double>(band.r)), b / (k2 + b),
                    static_cast<double>(band.k1) + band.a, band.c, 128 * 63.5 - kLogLeastV / 2);
}

// Operand: |x| + |mu y|. 2^-19 of it is room for a sum whose sign is lost to cancellation.
inline Screen MakeSgdScreen(const SgdBand& band) {
  const double k2 = band.k2, b = static_cast<double>(band.b) + 0x1p-19;
  return MakeScreen((k2 + b) * std::fabs(static_cast<double>(band.s)), b / (k2 + b),
                    static_cast<double>(band.k1) + band.a, band.c, 0);
}

}  // namespace deltawire::kernels
