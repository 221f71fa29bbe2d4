// A block's base with some elements replaced, as runs of memory for kernels: runs without replacements stand
// where they are, the others in a small copy.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "codec/codec.h"

namespace deltawire::codec {

// Calls f(bits, first, count) for consecutive runs that together are the block.
template <class F>
void WalkVirtualBase(ByteSpan base, uint32_t width, const Overlay& above, F&& f) {
  // A run of copies is a whole number of 64-element words where it can be, and ends with the last replacement
  // that is near.
  constexpr uint32_t kWord = 64;
  constexpr uint32_t kMost = 2048;
  std::array<uint8_t, kMost * 8> copy;
  const auto elements = static_cast<uint32_t>(base.size() / width);
  size_t i = 0;
  uint32_t at = 0;
  while (at < elements) {
    if (i == above.positions.size()) return f(base.data() + uint64_t{at} * width, at, elements - at);
    const uint32_t first = std::max(at, above.positions[i] / kWord * kWord);
    if (first > at) f(base.data() + uint64_t{at} * width, at, first - at);
    const uint32_t limit = std::min(elements, first + kMost);
    uint32_t end = std::min(limit, first + kWord);
    size_t last = i;
    while (last < above.positions.size() && above.positions[last] < std::min(limit, end + kWord)) {
      end = std::min(limit, (above.positions[last] / kWord + 1) * kWord);
      ++last;
    }
    std::memcpy(copy.data(), base.data() + uint64_t{first} * width, uint64_t{end - first} * width);
    for (; i < last; ++i) {
      std::memcpy(copy.data() + uint64_t{above.positions[i] - first} * width, above.bits.data() + i * width,
                  width);
    }
    f(copy.data(), first, end - first);
    at = end;
  }
}

}  // namespace deltawire::codec
