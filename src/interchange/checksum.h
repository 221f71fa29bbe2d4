// The checksums of slime and miles deltas, by the names that their index files give them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace deltawire::interchange {

enum class Checksum : uint8_t { kXxh3, kBlake3, kAdler32 };

// "xxh3-128", "blake3", "adler32".
std::string_view ChecksumName(Checksum checksum);
std::optional<Checksum> ChecksumFromName(std::string_view name);
// Lower-case hexadecimal: 32, 64 or 8 digits.
std::string ChecksumHex(Checksum checksum, ByteSpan bytes);

}  // namespace deltawire::interchange
