// What several methods share: positions as gaps, values by width, and sections behind their sizes.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "base/bytes.h"

namespace deltawire::bench {

// Calls f(T{}) with the unsigned integer of that width.
template <class F>
void WithElement(uint32_t width, F&& f) {
  switch (width) {
    case 1: f(uint8_t{}); break;
    case 2: f(uint16_t{}); break;
    case 4: f(uint32_t{}); break;
    default: f(uint64_t{}); break;
  }
}

// A section: u64 size, then its bytes.
inline void AppendSection(ByteSpan bytes, Bytes& out) {
  AppendLe<uint64_t>(bytes.size(), out);
  out.insert(out.end(), bytes.begin(), bytes.end());
}
inline ByteSpan TakeSection(ByteSpan& bytes) {
  const uint64_t size = LoadLe<uint64_t>(bytes.data());
  const ByteSpan section = bytes.subspan(8, size);
  bytes = bytes.subspan(8 + size);
  return section;
}

// Gaps - 1 in u16, or in u32 where one does not fit: a byte says which. Replaces `out`.
void GapBytes(std::span<const uint32_t> positions, Bytes& out);

// f(i, position) for each gap.
template <class F>
void ForEachGap(ByteSpan gaps, F&& f) {
  const auto walk = [&](auto zero) {
    using T = decltype(zero);
    const uint8_t* at = gaps.data() + 1;
    const size_t count = (gaps.size() - 1) / sizeof(T);
    uint64_t next = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t position = next + LoadLe<T>(at + i * sizeof(T));
      f(i, position);
      next = position + 1;
    }
  };
  gaps[0] == 2 ? walk(uint16_t{}) : walk(uint32_t{});
}

// New values, or old ^ new, at positions. Replaces `out`.
void Values(ByteSpan now, std::span<const uint32_t> positions, uint32_t width, Bytes& out);
void XorValues(ByteSpan base, ByteSpan now, std::span<const uint32_t> positions, uint32_t width, Bytes& out);

}  // namespace deltawire::bench
