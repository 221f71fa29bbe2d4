// The check at the end of the bytes of a step or class block (docs/formats/codings.md, "Block bytes").
//
// The state digest is linear: on a base with a flipped bit, a step moves the element by the same difference,
// and old and new digests still agree. Steps therefore carry a hash of the values that they must lead to.
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace deltawire::delta {

inline constexpr size_t kValueCheckBytes = 4;

// Low 32 bits of XXH3-64 over the new bits of the changed elements, then of the uncertain ones, then how many
// elements each class has in the virtual base (u32 each; none where the stream has no classes).
uint32_t ValueCheck(ByteSpan new_changed, ByteSpan new_uncertain, std::span<const uint32_t> populations);

}  // namespace deltawire::delta
