#include "format/binary.h"

namespace deltawire::format {

void AppendVarint(uint64_t value, Bytes& out) {
  while (value >= 0x80) {
    out.push_back(static_cast<uint8_t>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<uint8_t>(value));
}

void AppendDigest(const Digest& digest, Bytes& out) {
  AppendLe(digest.lanes[0], out);
  AppendLe(digest.lanes[1], out);
}

Result<ByteSpan> BinaryReader::Take(uint64_t count, std::string_view field) {
  if (count > remaining()) {
    return Fail(Code::kCorrupt, "{}: {} at offset {} needs {} bytes, {} are left; the table is cut short",
                what_, field, at_, count, remaining());
  }
  const ByteSpan taken = bytes_.subspan(at_, count);
  at_ += count;
  return taken;
}

Result<uint8_t> BinaryReader::Byte(std::string_view field) {
  DELTAWIRE_ASSIGN(const ByteSpan bytes, Take(1, field));
  return bytes[0];
}

Result<uint32_t> BinaryReader::U32(std::string_view field) {
  DELTAWIRE_ASSIGN(const ByteSpan bytes, Take(4, field));
  return LoadLe<uint32_t>(bytes.data());
}

Result<uint64_t> BinaryReader::U64(std::string_view field) {
  DELTAWIRE_ASSIGN(const ByteSpan bytes, Take(8, field));
  return LoadLe<uint64_t>(bytes.data());
}

Result<Digest> BinaryReader::ReadDigest(std::string_view field) {
  DELTAWIRE_ASSIGN(const ByteSpan bytes, Take(16, field));
  Digest digest;
  digest.lanes[0] = LoadLe<uint64_t>(bytes.data());
  digest.lanes[1] = LoadLe<uint64_t>(bytes.data() + 8);
  return digest;
}

Result<uint64_t> BinaryReader::Varint(std::string_view field) {
  const uint64_t start = at_;
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    DELTAWIRE_ASSIGN(const uint8_t byte, Byte(field));
    if (shift == 63 && byte > 1) {
      return Fail(Code::kCorrupt, "{}: {} at offset {} does not fit 64 bits", what_, field, start);
    }
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte & 0x80) continue;
    if (byte == 0 && shift > 0) {
      return Fail(Code::kCorrupt, "{}: {} at offset {} is not in its shortest form", what_, field, start);
    }
    return value;
  }
}

Result<uint64_t> BinaryReader::VarintUpTo(uint64_t max, std::string_view field) {
  const uint64_t start = at_;
  DELTAWIRE_ASSIGN(const uint64_t value, Varint(field));
  if (value > max) {
    return Fail(Code::kCorrupt, "{}: {} at offset {} is {}, expected at most {}", what_, field, start, value,
                max);
  }
  return value;
}

Status BinaryReader::End() const {
  if (remaining() == 0) return {};
  return Fail(Code::kCorrupt, "{}: {} bytes follow the last entry, at offset {}", what_, remaining(), at_);
}

}  // namespace deltawire::format
