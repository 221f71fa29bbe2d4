#include "delta/value_check.h"

#include "base/hash.h"

namespace deltawire::delta {

uint32_t ValueCheck(ByteSpan new_changed, ByteSpan new_uncertain, std::span<const uint32_t> populations) {
  if (new_uncertain.empty() && populations.empty()) return static_cast<uint32_t>(Xxh3_64(new_changed));
  Bytes joined(new_changed.begin(), new_changed.end());
  joined.insert(joined.end(), new_uncertain.begin(), new_uncertain.end());
  for (const uint32_t population : populations) AppendLe(population, joined);
  return static_cast<uint32_t>(Xxh3_64(joined));
}

}  // namespace deltawire::delta
