// Spans of bytes, little-endian access, and arithmetic on sizes that come from outside.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltawire {

using ByteSpan = std::span<const uint8_t>;
using MutableByteSpan = std::span<uint8_t>;
using Bytes = std::vector<uint8_t>;

static_assert(std::endian::native == std::endian::little,
              "every byte format here is little-endian and read in place");

// Unaligned little-endian load and store.
template <class T>
T LoadLe(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void StoreLe(T value, void* to) {
  std::memcpy(to, &value, sizeof(T));
}
template <class T>
void AppendLe(T value, Bytes& out) {
  const auto at = out.size();
  out.resize(at + sizeof(T));
  StoreLe(value, out.data() + at);
}

// nullopt on overflow.
inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}
inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
inline std::string_view AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Lower-case hexadecimal, two digits a byte.
std::string ToHex(ByteSpan bytes);
// nullopt unless text is an even number of hexadecimal digits.
std::optional<Bytes> FromHex(std::string_view text);

}  // namespace deltawire
