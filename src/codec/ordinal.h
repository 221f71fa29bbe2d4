// The monotone integer order of sign-magnitude bits (kernels.h, HostTable::steps): differences in it are the
// steps of the wire, modulo 2^bits.
#pragma once

#include <cstdint>
#include <type_traits>

namespace deltawire::codec {

// Its own inverse. Branch-free: the sign is a coin flip.
template <class U>
constexpr U Ordinal(U bits) {
  static_assert(std::is_unsigned_v<U>);
  constexpr unsigned kSignBit = 8 * sizeof(U) - 1;
  const U negative = static_cast<U>(U{0} - static_cast<U>(bits >> kSignBit));
  return static_cast<U>(bits ^ (negative & static_cast<U>(static_cast<U>(~U{0}) >> 1)));
}

// Calls f with a value of the unsigned type of `width` bytes: 1, 2, 4 or 8.
template <class F>
decltype(auto) WithWidth(uint32_t width, F&& f) {
  switch (width) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

constexpr bool IsWidth(uint32_t width) { return width == 1 || width == 2 || width == 4 || width == 8; }

}  // namespace deltawire::codec
