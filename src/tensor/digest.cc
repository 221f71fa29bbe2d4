#include "tensor/digest.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/hash.h"

namespace deltawire {

std::string Digest::Hex() const { return fmt::format("{:016x}{:016x}", lanes[0], lanes[1]); }

std::optional<Digest> Digest::FromHex(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  const auto bytes = deltawire::FromHex(text);
  if (!bytes) return std::nullopt;
  Digest out;
  for (int lane = 0; lane < 2; ++lane) {
    out.lanes[lane] = __builtin_bswap64(LoadLe<uint64_t>(bytes->data() + 8 * lane));
  }
  return out;
}

uint64_t DigestKey(std::string_view canonical_name) { return Xxh3_64(AsBytes(canonical_name)); }

}  // namespace deltawire
