// The table of all tensors' digests, in inventory order (docs/formats/inventory.md).
#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "tensor/digest.h"

namespace deltawire::format {

inline constexpr uint32_t kDigestTableVersion = 1;

Bytes DigestTableBytes(std::span<const Digest> digests);
// kCorrupt unless bytes are exactly a table of `tensors` digests; kUnsupported for another version.
Result<std::vector<Digest>> ParseDigestTable(ByteSpan bytes, uint64_t tensors);

}  // namespace deltawire::format
