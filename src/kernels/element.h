// What the kernels compute for one element: casts, ordinal order, digest factors, the guarded inversion.
// Normative together with ref/; the vector backends use these functions for tails and rare elements.
#pragma once

#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/kernels.h"

// The inversion counts roundings: every operation below must round once, to nearest, in float32 or double.
// Contraction is switched off for this library in CMakeLists.txt, so that backends agree bit for bit.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "deltawire kernels are unsound under -ffast-math or -ffinite-math-only; compile without them"
#endif
static_assert(FLT_EVAL_METHOD == 0, "float32 arithmetic must not be evaluated in a wider type");
static_assert(std::endian::native == std::endian::little, "spans are read as little-endian words");

namespace deltawire::kernels {

template <typename T>
T LoadAs(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}
template <typename T>
void StoreAs(void* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}
inline const uint8_t* Address(Source source) {
  return static_cast<const uint8_t*>(source.base) + source.offset;
}
inline uint8_t* Address(Target target) { return static_cast<uint8_t*>(target.base) + target.offset; }

// ---- casts (bits to bits)

inline uint16_t Bf16FromF32(uint32_t bits) {
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0xFFFF;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline uint16_t F16FromF32(uint32_t bits) {
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF));
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {                       // below 2^-14: subnormal or zero
    if (magnitude < 0x33000000) return sign;          // below 2^-25
    const uint32_t shift = 126 - (magnitude >> 23);
    const uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
    const uint32_t kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1);
    const uint32_t half = 1u << (shift - 1);
    return static_cast<uint16_t>(sign + kept + (rest > half || (rest == half && (kept & 1))));
  }
  return static_cast<uint16_t>(sign + ((magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13));
}

inline uint32_t F32FromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0x1F) return sign | 0x7F800000 | (mantissa ? 0x400000 : 0) | mantissa << 13;
  if (exponent != 0) return sign | (exponent + 112) << 23 | mantissa << 13;
  // A subnormal is mantissa * 2^-24, which float32 holds exactly.
  return sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
}

// Served bits, zero-extended, of the stored element at p.
inline uint64_t ServedBits(const uint8_t* p, Cast cast) {
  switch (cast) {
    case Cast::kBits8: return *p;
    case Cast::kBits16: return LoadAs<uint16_t>(p);
    case Cast::kBits32: return LoadAs<uint32_t>(p);
    case Cast::kBits64: return LoadAs<uint64_t>(p);
    case Cast::kF32ToBf16: return Bf16FromF32(LoadAs<uint32_t>(p));
    case Cast::kF32ToF16: return F16FromF32(LoadAs<uint32_t>(p));
    case Cast::kBf16ToF32: return static_cast<uint32_t>(LoadAs<uint16_t>(p)) << 16;
    case Cast::kF16ToF32: return F32FromF16(LoadAs<uint16_t>(p));
  }
  return 0;
}

inline uint64_t LoadBits(const void* p, uint32_t width) {
  uint64_t bits = 0;
  std::memcpy(&bits, p, width);
  return bits;
}
inline void StoreBits(void* p, uint32_t width, uint64_t bits) { std::memcpy(p, &bits, width); }

// ---- monotone integer order of sign-magnitude bits; its own inverse

template <typename T>
T Ordinal(T bits) {
  using Signed = std::make_signed_t<T>;
  const T negative = static_cast<T>(static_cast<Signed>(bits) >> (8 * sizeof(T) - 1));
  constexpr T kMagnitude = static_cast<T>(static_cast<T>(~T{0}) >> 1);
  return static_cast<T>(bits ^ (negative & kMagnitude));
}

// ---- state digest

inline constexpr uint64_t kDigestGolden = 0x9E3779B97F4A7C15;
inline constexpr uint32_t kDigestRowWords = 512;

constexpr uint64_t DigestMix(uint64_t z) {
  z ^= z >> 30;
  z *= 0xBF58476D1CE4E5B9;
  z ^= z >> 27;
  z *= 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Factor of word i of a 4 KiB row, the same for every tensor.
constexpr uint64_t DigestLeft(uint32_t i, int lane) {
  return DigestMix((2 * uint64_t{i} + 1 + static_cast<uint64_t>(lane)) * kDigestGolden) | 1;
}
// Factor of row b of the tensor with this key.
constexpr uint64_t DigestRight(uint64_t key, uint64_t b, int lane) {
  return DigestMix(key + (2 * b + 1 + static_cast<uint64_t>(lane)) * kDigestGolden) | 1;
}

struct DigestLeftTable {
  alignas(64) std::array<uint64_t, kDigestRowWords> lane[2];
};
inline constexpr DigestLeftTable kDigestLeft = [] {
  DigestLeftTable table{};
  for (int lane = 0; lane < 2; ++lane) {
    for (uint32_t i = 0; i < kDigestRowWords; ++i) table.lane[lane][i] = DigestLeft(i, lane);
  }
  return table;
}();

// The word in which only this element stands: `byte` is its offset in the tensor. Reversing the word moves
// the element to byte 8 - k - width with its own bytes reversed, which is what lane 1 takes.
inline uint64_t DigestWord(uint64_t bits, uint64_t byte) { return bits << (8 * (byte % 8)); }

inline void DigestElement(uint64_t key, uint64_t byte, uint64_t bits, uint64_t lanes[2]) {
  const uint64_t i = byte / 8 % kDigestRowWords;
  const uint64_t b = byte / 8 / kDigestRowWords;
  const uint64_t word = DigestWord(bits, byte);
  lanes[0] += kDigestLeft.lane[0][i] * DigestRight(key, b, 0) * word;
  lanes[1] += kDigestLeft.lane[1][i] * DigestRight(key, b, 1) * __builtin_bswap64(word);
}

// ---- guarded inversion (docs/numerics.md)

struct Verdict {
  enum Kind : uint8_t { kSame, kChanged, kUncertain } kind;
  uint16_t old_bits;  // kChanged: the certified old bits. kUncertain, span 1: the lower candidate
  uint8_t span;
};

inline constexpr uint16_t kBf16SmallMagnitude = 0x0800;  // set Z: magnitudes 1 ... this, 2^-111

// Next representable value outward when the conversion from double rounded inward.
inline float FloatBelow(double x) {
  const float f = static_cast<float>(x);
  return static_cast<double>(f) > x ? std::nextafterf(f, -INFINITY) : f;
}
inline float FloatAbove(double x) {
  const float f = static_cast<float>(x);
  return static_cast<double>(f) < x ? std::nextafterf(f, INFINITY) : f;
}

// theta is after the step, `undone` the estimate of what it was less theta, b the half width of the band
// around it. in_range: the state is in the range of the proof; idle: it moves nothing (an update of +-0).
// Anything NaN or infinite ends in "uncertain".
inline Verdict DecideElement(float theta, float undone, float b, bool in_range, bool idle) {
  const uint32_t theta_bits = std::bit_cast<uint32_t>(theta);
  const uint32_t magnitude = theta_bits & 0x7FFFFFFF;
  const uint32_t cell = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) & 0x7FFF0000;
  const float a = std::bit_cast<float>(magnitude);
  const float outer = std::bit_cast<float>(cell + 0x8000) - a;
  const float inner = a - (cell ? std::bit_cast<float>(cell - 0x8000) : 0.0f);
  const float x = std::bit_cast<float>(std::bit_cast<uint32_t>(undone) ^ (theta_bits & 0x80000000));

  const bool covered = in_range && cell < 0x7F800000 && magnitude < 0x7F800000;
  if (covered && x + b < outer && b - x < inner) return {Verdict::kSame, 0, 0};
  // Not -0, which a fused multiply-add of an m that was then rounded to zero makes of +0. Where it was -0
  // before, set Z knows.
  if (theta_bits == 0 && idle) return {Verdict::kSame, 0, 0};
  if (!covered) return {Verdict::kUncertain, 0, 0};

  // The old value lies in [low, high]; 1.0001 covers the roundings of b and of this sum.
  const double half_width = 1.0001 * static_cast<double>(b);
  const double middle = static_cast<double>(theta) + static_cast<double>(undone);
  const uint16_t low = Bf16FromF32(std::bit_cast<uint32_t>(FloatBelow(middle - half_width)));
  const uint16_t high = Bf16FromF32(std::bit_cast<uint32_t>(FloatAbove(middle + half_width)));
  const auto usable = [](uint16_t bits) {
    const uint32_t size = bits & 0x7FFF;
    return size > kBf16SmallMagnitude && size < 0x7F80;
  };
  if (!usable(low) || !usable(high)) return {Verdict::kUncertain, 0, 0};
  if (low == high) {
    if (low == Bf16FromF32(theta_bits)) return {Verdict::kSame, 0, 0};
    return {Verdict::kChanged, low, 0};
  }
  const int steps = static_cast<int16_t>(Ordinal(high)) - static_cast<int16_t>(Ordinal(low));
  if (steps == 1) return {Verdict::kUncertain, low, 1};
  return {Verdict::kUncertain, 0, 0};
}

// By bits: even where this side takes subnormals for zero, the step may not have.
inline bool IsZero(float x) { return std::bit_cast<uint32_t>(x) << 1 == 0; }

inline Verdict InvertAdamwElement(float theta, float m, float v, const AdamwBand& band) {
  const float root = std::sqrt(v * band.r) + band.eps;
  const float u = (band.s * m) / root;
  const float undone = band.k1 * theta + band.k2 * u;
  const float b = band.a * std::fabs(theta) + (band.b * std::fabs(u) + band.c);
  const bool in_range =
      v < 0x1p100f && std::fabs(m) < 0x1p100f && (!band.tiny_eps || m == 0 || v >= 0x1p-100f);
  return DecideElement(theta, undone, b, in_range, band.idle_stays && IsZero(m));
}

// y is 0 where a step has none.
inline Verdict InvertSgdElement(float theta, float x, float y, const SgdBand& band) {
  const float u = band.s * (x + band.mu * y);
  const float size = std::fabs(band.s) * (std::fabs(x) + std::fabs(band.mu) * std::fabs(y));
  const float undone = band.k1 * theta + band.k2 * u;
  const float b = band.a * std::fabs(theta) + (band.b * size + band.c);
  return DecideElement(theta, undone, b, true, IsZero(x) && IsZero(y));
}

// Stored moment -> float32.
inline float LoadMoment(const uint8_t* p, uint64_t i, bool is_bf16) {
  if (!is_bf16) return LoadAs<float>(p + i * sizeof(float));
  return std::bit_cast<float>(static_cast<uint32_t>(LoadAs<uint16_t>(p + i * sizeof(uint16_t))) << 16);
}

inline bool InSetZ(uint16_t bits) {
  const uint32_t size = bits & 0x7FFF;
  return bits == 0x8000 || (size >= 1 && size <= kBf16SmallMagnitude);
}

}  // namespace deltawire::kernels
