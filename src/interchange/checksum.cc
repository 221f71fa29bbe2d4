#include "interchange/checksum.h"

#include <fmt/format.h>
#include <zlib.h>

#include "base/hash.h"
#include "interchange/blake3.h"

namespace deltawire::interchange {

std::string_view ChecksumName(Checksum checksum) {
  switch (checksum) {
    case Checksum::kXxh3: return "xxh3-128";
    case Checksum::kBlake3: return "blake3";
    case Checksum::kAdler32: return "adler32";
  }
  return "";
}

std::optional<Checksum> ChecksumFromName(std::string_view name) {
  for (const auto checksum : {Checksum::kXxh3, Checksum::kBlake3, Checksum::kAdler32}) {
    if (ChecksumName(checksum) == name) return checksum;
  }
  return std::nullopt;
}

std::string ChecksumHex(Checksum checksum, ByteSpan bytes) {
  switch (checksum) {
    case Checksum::kXxh3: return ToHex(Xxh3_128(bytes));
    case Checksum::kBlake3: return ToHex(Blake3(bytes));
    // zlib answers a null pointer with the start value, whatever the length.
    case Checksum::kAdler32: return fmt::format("{:08x}", adler32_z(1, bytes.data(), bytes.size()));
  }
  return "";
}

}  // namespace deltawire::interchange
