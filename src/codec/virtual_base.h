// A block's base with some elements replaced, as runs of memory for kernels: long runs without replacements
// stand where they are, the others in a small copy.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "codec/codec.h"

namespace deltawire::codec {

// Calls f(bits, first, count) for consecutive runs that together are the block. Runs are whole batches of the
// kernels wherever they can be: a partial batch costs about as much as a whole one, copied.
template <class F>
void WalkVirtualBase(BlockBits base, uint32_t width, const Overlay& above, F&& f) {
  constexpr uint32_t kBatch = 2048;  // elements
  std::array<uint8_t, kBatch * 8> copy;
  size_t next = 0;      // replacement
  uint32_t at = 0;      // element
  uint32_t copied = 0;  // elements from `at` on that stand in the copy
  const auto flush = [&] {
    for (; next < above.positions.size() && above.positions[next] - at < copied; ++next) {
      uint8_t* to = copy.data() + uint64_t{above.positions[next] - at} * width;
      std::memcpy(to, above.bits.data() + next * width, width);
    }
    if (copied > 0) f(copy.data(), at, copied);
    at += copied;
    copied = 0;
  };
  for (const ByteSpan piece : base) {
    const uint8_t* from = piece.data();
    auto left = static_cast<uint32_t>(piece.size() / width);
    // Pieces shorter than a batch share one.
    while (left > 0) {
      if (copied == 0 && left >= kBatch) {
        const uint32_t free = next < above.positions.size() ? above.positions[next] - at : left;
        const uint32_t run = std::min(left, free) / kBatch * kBatch;
        if (run > 0) {
          f(from, at, run);
          at += run;
          from += uint64_t{run} * width;
          left -= run;
          continue;
        }
      }
      const uint32_t count = std::min(left, kBatch - copied);
      std::memcpy(copy.data() + uint64_t{copied} * width, from, uint64_t{count} * width);
      copied += count;
      from += uint64_t{count} * width;
      left -= count;
      if (copied == kBatch) flush();
    }
  }
  flush();
}

}  // namespace deltawire::codec
