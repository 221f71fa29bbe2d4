// Bits packed least significant first: bit i of the stream is bit i % 8 of byte i / 8. A stream is padded with
// zero bits to a whole byte.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/bytes.h"

namespace deltawire::codec {

class BitWriter {
 public:
  // The low `count` bits of value (higher ones must be zero). count <= 56.
  void Put(uint64_t value, unsigned count) {
    if (at_ + 8 > buffer_.size()) buffer_.resize(2 * buffer_.size() + 64);
    pending_ |= value << used_;
    StoreLe(pending_, buffer_.data() + at_);
    used_ += count;
    at_ += used_ >> 3;
    pending_ >>= used_ & ~7u;
    used_ &= 7;
  }
  // As Put, for count <= 64.
  void PutLong(uint64_t value, unsigned count) {
    if (count > 32) {
      Put(value & 0xFFFFFFFFu, 32);
      Put(value >> 32, count - 32);
    } else {
      Put(value, count);
    }
  }

  uint64_t bit_count() const { return 8 * uint64_t{at_} + used_; }
  // Appends the padded stream to out.
  void AppendTo(Bytes& out) const {
    out.insert(out.end(), buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(at_));
    if (used_ > 0) out.push_back(static_cast<uint8_t>(pending_));
  }

 private:
  Bytes buffer_;
  size_t at_ = 0;
  unsigned used_ = 0;  // bits of pending_, always < 8 between calls
  uint64_t pending_ = 0;
};

// Reads past the end give zeros; the caller asks UsedUpExactly() at the end, so that the loops need no check.
class BitReader {
 public:
  explicit BitReader(ByteSpan bytes) : bytes_(bytes) {}

  // count <= 56.
  uint64_t Read(unsigned count) {
    const uint64_t word = Load(position_ >> 3) >> (position_ & 7);
    position_ += count;
    return word & ((uint64_t{1} << count) - 1);
  }
  // count <= 64.
  uint64_t ReadLong(unsigned count) {
    if (count <= 32) return Read(count);
    const uint64_t low = Read(32);
    return low | Read(count - 32) << 32;
  }

  // True when the last byte has been reached, no bit past it was read, and the padding is zero.
  bool UsedUpExactly() const {
    if ((position_ + 7) / 8 != bytes_.size()) return false;
    return position_ % 8 == 0 || bytes_.back() >> (position_ % 8) == 0;
  }

 private:
  uint64_t Load(uint64_t byte) const {
    if (byte + 8 <= bytes_.size()) return LoadLe<uint64_t>(bytes_.data() + byte);
    uint64_t word = 0;
    if (byte < bytes_.size()) std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    return word;
  }

  ByteSpan bytes_;
  uint64_t position_ = 0;
};

}  // namespace deltawire::codec
