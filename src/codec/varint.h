// LEB128 numbers, low seven bits first, and the bytes between them.
#pragma once

#include <cstdint>
#include <optional>

#include "base/bytes.h"

namespace deltawire::codec {

inline void PutVarint(uint64_t value, Bytes& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<uint8_t>(value | 0x80));
  out.push_back(static_cast<uint8_t>(value));
}

class VarintReader {
 public:
  explicit VarintReader(ByteSpan bytes) : bytes_(bytes) {}

  // nullptr when fewer are left.
  const uint8_t* Take(size_t count) {
    if (bytes_.size() - at_ < count) return nullptr;
    at_ += count;
    return bytes_.data() + at_ - count;
  }
  // nullopt when bytes end, the number is above `largest`, or it has needless zero bytes.
  std::optional<uint64_t> Varint(uint64_t largest) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const uint8_t* byte = Take(1);
      if (byte == nullptr) return std::nullopt;
      const uint64_t part = *byte & 0x7F;
      if (part > largest >> shift) return std::nullopt;
      value |= part << shift;
      if (*byte < 0x80) {
        if ((*byte == 0 && shift > 0) || value > largest) return std::nullopt;
        return value;
      }
    }
    return std::nullopt;
  }
  ByteSpan rest() const { return bytes_.subspan(at_); }
  bool AtEnd() const { return at_ == bytes_.size(); }

 private:
  ByteSpan bytes_;
  size_t at_ = 0;
};

}  // namespace deltawire::codec
