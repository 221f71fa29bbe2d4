// The check at the end of a step block's bytes (docs/formats/codings.md, "Block bytes").
//
// The state digest is linear: on a base with a flipped bit, a step moves the element by the same difference,
// and old and new digests still agree. Steps therefore carry a hash of the values that they must lead to.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace deltawire::delta {

inline constexpr size_t kValueCheckBytes = 4;

// Low 32 bits of XXH3-64 over the new bits of the changed elements, then of the uncertain ones.
uint32_t ValueCheck(ByteSpan new_changed, ByteSpan new_uncertain);

}  // namespace deltawire::delta
