// How few bytes could say what changed, if both sides know the base and nothing else.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"

namespace deltawire::bench {

// Adaptive code length given the class (KT, the estimator of Krichevsky and Trofimov): elements are sorted by
// the exponent of their old BF16 bits; in each class a flag an element says whether it changed, and each
// changed one has a symbol, its step in ordinal order: -8 ... 8 as they are, larger ones by sign and length,
// with the bits below the first as they are. Flags and symbols are coded with add-1/2 counts, so nothing is
// learned for free. For 16-bit elements.
class EntropyFloor {
 public:
  // All elements of a tensor at both versions; counts add up over calls.
  void Add(ByteSpan base, ByteSpan now);
  double bytes() const;

 private:
  static constexpr uint32_t kSymbols = 16 + 2 * 14;
  struct Class {
    uint64_t elements = 0;
    uint64_t changed = 0;
    std::array<uint64_t, kSymbols> steps{};
    uint64_t raw_bits = 0;
  };
  std::array<Class, 256> classes_;
};

}  // namespace deltawire::bench
