// Exponent-style buckets of non-negative integers: four an octave of value + 4, the rest as raw low bits. The
// bucket goes through the entropy coder; inside a bucket values are close to equally likely.
#pragma once

#include <bit>
#include <cstdint>

namespace deltawire::codec {

// Buckets of values < 2^22 - 4: every gap of a block.
inline constexpr unsigned kGapBuckets = 80;
// Buckets of values < 2^64 - 4: every magnitude of a 64-bit step.
inline constexpr unsigned kMagnitudeBuckets = 248;

struct Bucketed {
  unsigned bucket;
  unsigned extra_bits;
  uint64_t extra;
};

// value < 2^64 - 4.
constexpr Bucketed ToBucket(uint64_t value) {
  const uint64_t shifted = value + 4;
  const unsigned extra_bits = static_cast<unsigned>(std::bit_width(shifted)) - 3;
  const uint64_t top = shifted >> extra_bits;  // 4 ... 7
  return {4 * extra_bits + static_cast<unsigned>(top - 4), extra_bits, shifted - (top << extra_bits)};
}

constexpr unsigned BucketExtraBits(unsigned bucket) { return bucket / 4; }
// The smallest value of a bucket < kMagnitudeBuckets.
constexpr uint64_t BucketBase(unsigned bucket) { return (uint64_t{4 + bucket % 4} << (bucket / 4)) - 4; }

}  // namespace deltawire::codec
