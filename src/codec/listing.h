// The normal form of a block's changes, the same on both sides of the wire: what Decode gives and what every
// form of a stream is written from.
#pragma once

#include "codec/codec.h"

namespace deltawire::codec {

// Steps and residues of a block; kAbsolute: both lists merged, as new bits. Costs O(changed + uncertain).
Decoded List(Coding coding, const BlockChanges& block);
// Of kStep and kClass, the uncertain elements alone.
Decoded ListUncertain(const BlockChanges& block);

// True when an element of one ascending list is in the other.
bool Intersect(std::span<const uint32_t> a, std::span<const uint32_t> b);

}  // namespace deltawire::codec
