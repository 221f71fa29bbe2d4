#include "bench/peers/sections.h"

#include <algorithm>
#include <limits>

namespace deltawire::bench {

void GapBytes(std::span<const uint32_t> positions, Bytes& out) {
  uint32_t largest = 0;
  uint32_t next = 0;
  for (const uint32_t position : positions) {
    largest = std::max(largest, position - next);
    next = position + 1;
  }
  const auto write = [&](auto zero) {
    using T = decltype(zero);
    out.resize(1 + positions.size() * sizeof(T));
    out[0] = sizeof(T);
    uint32_t from = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
      StoreLe(static_cast<T>(positions[i] - from), out.data() + 1 + i * sizeof(T));
      from = positions[i] + 1;
    }
  };
  largest <= std::numeric_limits<uint16_t>::max() ? write(uint16_t{}) : write(uint32_t{});
}

void Values(ByteSpan now, std::span<const uint32_t> positions, uint32_t width, Bytes& out) {
  out.resize(positions.size() * width);
  WithElement(width, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < positions.size(); ++i) {
      StoreLe(LoadLe<T>(now.data() + uint64_t{positions[i]} * sizeof(T)), out.data() + i * sizeof(T));
    }
  });
}

void XorValues(ByteSpan base, ByteSpan now, std::span<const uint32_t> positions, uint32_t width, Bytes& out) {
  out.resize(positions.size() * width);
  WithElement(width, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < positions.size(); ++i) {
      const uint64_t at = uint64_t{positions[i]} * sizeof(T);
      StoreLe(static_cast<T>(LoadLe<T>(base.data() + at) ^ LoadLe<T>(now.data() + at)),
              out.data() + i * sizeof(T));
    }
  });
}

}  // namespace deltawire::bench
