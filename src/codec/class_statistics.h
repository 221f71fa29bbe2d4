// How many elements and changes there are at each key of the base, and where to cut the keys into classes.
#pragma once

#include <array>
#include <cstdint>

#include "codec/codec.h"

namespace deltawire::codec {

// Statistics of the blocks of one width. Doubles: populations are estimated from samples.
class ClassStatistics {
 public:
  void AddSample(uint32_t width, uint32_t elements, ByteSpan some);
  void AddChanges(const BlockChanges& block);
  bool empty() const { return changes_ == 0; }

  // The cuts into at most `most` classes with the least code length: positions within each class as
  // independent draws, kinds of steps (+1, -1, other) as drawn from the class's own shares.
  kernels::ClassCuts Choose(uint32_t most) const;
  // Expected share of changed elements in a class of those cuts.
  std::array<double, kernels::kMaxClasses> Rates(const kernels::ClassCuts& cuts) const;

 private:
  static constexpr uint32_t kKeys = 256;
  std::array<double, kKeys> elements_{};
  std::array<double, kKeys> changed_{};
  std::array<double, kKeys> escapes_{};
  uint64_t changes_ = 0;
};

// The key of an element (kernels/class_walk.h).
template <class U>
constexpr uint8_t ClassKey(U bits) {
  return static_cast<uint8_t>(uint64_t{bits} << 1 >> (8 * sizeof(U) - 8));
}

}  // namespace deltawire::codec
