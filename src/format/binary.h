// Reading and writing of small binary tables: LEB128 numbers, little-endian words.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "tensor/digest.h"

namespace deltawire::format {

// Unsigned LEB128: seven bits a byte, least significant first, high bit = more follow. Always the shortest
// form.
void AppendVarint(uint64_t value, Bytes& out);
// lane 0, then lane 1, little-endian.
void AppendDigest(const Digest& digest, Bytes& out);

// Reads from the front of `bytes`. Errors are kCorrupt and name `what`, the field and the offset.
class BinaryReader {
 public:
  BinaryReader(ByteSpan bytes, std::string_view what) : bytes_(bytes), what_(what) {}

  uint64_t offset() const { return at_; }
  uint64_t remaining() const { return bytes_.size() - at_; }

  Result<ByteSpan> Take(uint64_t count, std::string_view field);
  Result<uint8_t> Byte(std::string_view field);
  Result<uint32_t> U32(std::string_view field);
  Result<uint64_t> U64(std::string_view field);
  Result<Digest> ReadDigest(std::string_view field);
  // Refuses forms longer than the shortest and values of 2^64 and more.
  Result<uint64_t> Varint(std::string_view field);
  // A varint of at most `max`.
  Result<uint64_t> VarintUpTo(uint64_t max, std::string_view field);
  // kCorrupt when bytes are left.
  Status End() const;

 private:
  ByteSpan bytes_;
  std::string_view what_;
  uint64_t at_ = 0;
};

}  // namespace deltawire::format
