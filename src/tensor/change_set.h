// What changed in one block between two versions, as plain values on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"

namespace deltawire {

// Positions are row-major inside the block's box, ascending and distinct; `changed` and `uncertain` are
// disjoint. Bit arrays hold width bytes an element (the served dtype), in the order of their positions.
struct BlockChange {
  // Changed, base known exactly.
  std::vector<uint32_t> changed;
  Bytes old_bits;
  Bytes new_bits;
  // Base not known exactly; the new value is what counts. For 16-bit dtypes with span 1 the base is
  // `uncertain_low` or its successor in ordinal order; with span 0 nothing is known.
  std::vector<uint32_t> uncertain;
  std::vector<uint16_t> uncertain_low;
  std::vector<uint8_t> uncertain_span;
  Bytes uncertain_new;
  // Every element, base unknown; the lists above are empty then.
  bool dense = false;
  Bytes dense_bits;

  bool empty() const { return !dense && changed.empty() && uncertain.empty(); }
};

}  // namespace deltawire
