// One zstd frame <-> bytes, with the size of the result bounded before anything is allocated.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"

namespace deltawire::interchange {

// With the content's size and zstd's own checksum of it (four bytes), which every zstd reader checks: the
// formats that carry such frames may have weaker ones, or none. level: as zstd has them.
Result<Bytes> CompressFrame(ByteSpan content, int level);

// Total. kCorrupt unless `frame` is exactly one valid frame, needs no dictionary, and its content is at most
// most_bytes; frames that declare their content size are refused before memory is taken.
Result<Bytes> DecompressFrame(ByteSpan frame, uint64_t most_bytes);

}  // namespace deltawire::interchange
