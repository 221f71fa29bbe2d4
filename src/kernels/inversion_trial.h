// For tests of the inversion: random numbers, the oracle of what BF16 a float32 is, and the judge of result
// lists. Shares nothing with the kernels but their interface.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <vector>

#include "kernels/kernels.h"

namespace deltawire::kernels {

// splitmix64; the standard engines would be half of the time.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>((Next() >> 32) * n >> 32); }
  float Uniform() { return static_cast<float>(Next() >> 40) * 0x1p-24f; }
  float Log2Uniform(float low, float high) { return std::exp2(low + (high - low) * Uniform()); }
  float Sign() { return Next() >> 63 ? -1.0f : 1.0f; }
  // Sum of uniforms: near enough to normal, with bounded tails.
  float Normal() { return (Uniform() + Uniform() + Uniform() + Uniform() - 2) * 1.7320508f; }
  template <typename T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[Below(static_cast<uint32_t>(values.size()))];
  }

 private:
  uint64_t state_;
};

inline float AsFloat(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t AsBits(float x) { return std::bit_cast<uint32_t>(x); }

// Oracle: nearest BF16, ties to even, by the lower half of the bits.
inline uint16_t OracleBf16(float x) {
  if (std::isnan(x)) return 0xFFFF;
  const uint32_t bits = AsBits(x);
  const auto upper = static_cast<uint16_t>(bits >> 16);
  const uint32_t low = bits & 0xFFFF;
  if (low < 0x8000 || (low == 0x8000 && upper % 2 == 0)) return upper;
  return static_cast<uint16_t>(upper + 1);
}
inline bool OracleInSetZ(uint16_t bits) {
  return bits == 0x8000 || ((bits & 0x7FFF) != 0 && (bits & 0x7FFF) <= 0x0800);
}

// A weight within four units of float32 of an edge of a BF16 cell; every eighth cell next to a binade.
inline float NextToAnEdge(Random& rng) {
  uint32_t pattern = 0x3000 + rng.Below(0x4200 - 0x3000);
  if (rng.Below(8) == 0) pattern = (pattern & ~0x7Fu) | (rng.Below(2) ? 0x7F : 0);
  return rng.Sign() * AsFloat((pattern << 16) + 0x8000 + rng.Below(9) - 4);
}
// The same for any float32: as hard to undo as a value stored in BF16 can be.
inline float NextToATie(Random& rng, float x) {
  const uint32_t kept = rng.Below(2) ? AsBits(x) & 0xFF800000 : AsBits(x) & 0xFFFF0000;
  return AsFloat(kept | (0x8000 + rng.Below(9) - 4));
}

// What an inversion returns for n elements.
struct Lists {
  explicit Lists(uint32_t n) : changed(n), uncertain(n), old(n), low(n), span(n) {}
  Inverted Room() { return {changed.data(), old.data(), uncertain.data(), low.data(), span.data(), 0, 0}; }
  void Cut(const Inverted& out) {
    changed.resize(out.changed_count);
    old.resize(out.changed_count);
    uncertain.resize(out.uncertain_count);
    low.resize(out.uncertain_count);
    span.resize(out.uncertain_count);
  }
  bool operator==(const Lists& other) const {
    return changed == other.changed && uncertain == other.uncertain && old == other.old && low == other.low &&
           span == other.span && lanes[0] == other.lanes[0] && lanes[1] == other.lanes[1];
  }

  std::vector<uint32_t> changed, uncertain;
  std::vector<uint16_t> old, low;
  std::vector<uint8_t> span;
  uint64_t lanes[2] = {3, 4};
};

struct Tally {
  uint64_t steps = 0, changed = 0, missed = 0, wrong = 0, spurious = 0, uncertain = 0, without_span = 0;

  // missed: changed, and in no list. wrong: an old value that was not. spurious: certified without a change.
  void Judge(const std::vector<float>& before_step, const std::vector<float>& after_step,
             const Lists& lists) {
    size_t c = 0, u = 0;
    for (uint32_t i = 0; i < before_step.size(); ++i) {
      const uint16_t before = OracleBf16(before_step[i]), after = OracleBf16(after_step[i]);
      changed += before != after;
      if (c < lists.changed.size() && lists.changed[c] == i) {
        wrong += lists.old[c] != before;
        spurious += before == after;
        ++c;
      } else if (u < lists.uncertain.size() && lists.uncertain[u] == i) {
        // Span 1: `low` and the next in ordinal order, which for negative values has the smaller magnitude.
        const int next = (lists.low[u] & 0x8000) ? lists.low[u] - 1 : lists.low[u] + 1;
        wrong += lists.span[u] == 1 && before != lists.low[u] && before != next;
        without_span += lists.span[u] == 0;
        ++u;
      } else {
        missed += before != after && !OracleInSetZ(before);
      }
    }
    ASSERT_EQ(c, lists.changed.size()) << "positions must ascend";
    ASSERT_EQ(u, lists.uncertain.size()) << "positions must ascend";
    steps += before_step.size();
    uncertain += lists.uncertain.size();
  }

  void Print(const char* what, uint64_t seed) const {
    const double all = static_cast<double>(steps);
    std::printf(
        "%s: seed %llu, %.3g element-steps, changed %.4f %%, missed %llu, wrong %llu, uncertain %.4f %% (no "
        "span %.4f %%)\n",
        what, static_cast<unsigned long long>(seed), all, 100.0 * static_cast<double>(changed) / all,
        static_cast<unsigned long long>(missed), static_cast<unsigned long long>(wrong),
        100.0 * static_cast<double>(uncertain) / all, 100.0 * static_cast<double>(without_span) / all);
  }
  void ExpectSound() const {
    EXPECT_EQ(missed, 0u);
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(spurious, 0u);
  }
};

}  // namespace deltawire::kernels
