#include "delta/value_check.h"

#include "base/hash.h"

namespace deltawire::delta {

uint32_t ValueCheck(ByteSpan new_changed, ByteSpan new_uncertain, std::span<const uint32_t> populations) {
  Bytes counts;
  for (const uint32_t population : populations) AppendLe(population, counts);
  const ByteSpan pieces[] = {new_changed, new_uncertain, counts};
  return static_cast<uint32_t>(Xxh3_64OfPieces(pieces));
}

}  // namespace deltawire::delta
