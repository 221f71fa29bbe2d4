// Bits packed least significant first: bit i of the stream is bit i % 8 of byte i / 8. A stream is padded
// with zero bits to a whole byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "kernels/symbol_groups.h"

namespace deltawire::codec {

// Appends in batches: a Batch is plain data that a loop can keep in registers, without a bounds check for
// each number.
class BitWriter {
 public:
  class Batch {
   public:
    // The low `count` bits of value (higher ones must be zero). count <= 56.
    void Put(uint64_t value, unsigned count) {
      pending_ |= value << used_;
      StoreLe(pending_, out_);
      used_ += count;
      out_ += used_ >> 3;
      pending_ >>= used_ & ~7u;
      used_ &= 7;
    }
    // As Put, for count <= 64.
    void PutLong(uint64_t value, unsigned count) {
      if (count <= 32) return Put(value, count);
      Put(value & 0xFFFFFFFFu, 32);
      Put(value >> 32, count - 32);
    }
    // For kernels that write on.
    kernels::BitSink sink() const { return {out_, pending_, used_}; }
    void MoveTo(const kernels::BitSink& sink) {
      out_ = sink.out;
      pending_ = sink.pending;
      used_ = sink.used;
    }

   private:
    friend class BitWriter;
    uint8_t* out_;
    uint64_t pending_;
    unsigned used_;  // bits of pending_, always < 8 between calls
  };

  // Room for at most that many bits. One batch at a time; Commit ends it.
  Batch Begin(uint64_t most_bits) {
    Reserve(size_ + most_bits / 8 + 16);
    Batch batch;
    batch.out_ = buffer_.get() + size_;
    batch.pending_ = pending_;
    batch.used_ = used_;
    return batch;
  }
  void Commit(const Batch& batch) {
    size_ = static_cast<uint64_t>(batch.out_ - buffer_.get());
    pending_ = batch.pending_;
    used_ = batch.used_;
  }

  // One number, count <= 56. For the few that are not written in a loop.
  void Put(uint64_t value, unsigned count) {
    Batch batch = Begin(count);
    batch.Put(value, count);
    Commit(batch);
  }

  uint64_t bit_count() const { return 8 * uint64_t{size_} + used_; }
  // Appends the padded stream to out.
  void AppendTo(Bytes& out) const {
    if (size_ > 0) out.insert(out.end(), buffer_.get(), buffer_.get() + size_);
    if (used_ > 0) out.push_back(static_cast<uint8_t>(pending_));
  }

 private:
  void Reserve(uint64_t bytes) {
    if (bytes <= capacity_) return;
    const uint64_t capacity = std::max(bytes, 2 * size_);
    auto buffer = std::make_unique_for_overwrite<uint8_t[]>(capacity);
    if (size_ > 0) std::memcpy(buffer.get(), buffer_.get(), size_);
    buffer_ = std::move(buffer);
    capacity_ = capacity;
  }

  // Not a vector: room is for the worst case, and clearing it would cost as much as writing.
  std::unique_ptr<uint8_t[]> buffer_;
  uint64_t capacity_ = 0;
  uint64_t size_ = 0;
  uint64_t pending_ = 0;
  unsigned used_ = 0;
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

  // For kernels that read on.
  kernels::BitSource source() const { return {bytes_.data(), bytes_.size(), position_}; }
  void MoveTo(const kernels::BitSource& source) { position_ = source.position; }

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
