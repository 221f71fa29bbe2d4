#include "codec/value_planes.h"

#include <bit>

#include "codec/ordinal.h"

namespace deltawire::codec {

void SplitValues(ByteSpan values, uint32_t width, std::span<std::vector<uint8_t>> planes) {
  WithWidth(width, [&](auto zero) {
    using U = decltype(zero);
    const size_t count = values.size() / sizeof(U);
    for (size_t plane = 0; plane < sizeof(U); ++plane) {
      const unsigned shift = static_cast<unsigned>(8 * (sizeof(U) - 1 - plane));
      planes[plane].resize(count);
      uint8_t* const out = planes[plane].data();
      for (size_t i = 0; i < count; ++i) {
        out[i] = static_cast<uint8_t>(std::rotl(LoadLe<U>(values.data() + i * sizeof(U)), 1) >> shift);
      }
    }
  });
}

void JoinValues(std::span<const uint8_t* const> planes, uint32_t width, MutableByteSpan values) {
  WithWidth(width, [&](auto zero) {
    using U = decltype(zero);
    const size_t count = values.size() / sizeof(U);
    for (size_t i = 0; i < count; ++i) {
      uint64_t value = 0;
      for (size_t plane = 0; plane < sizeof(U); ++plane) value = value << 8 | planes[plane][i];
      StoreLe(std::rotr(static_cast<U>(value), 1), values.data() + i * sizeof(U));
    }
  });
}

}  // namespace deltawire::codec
