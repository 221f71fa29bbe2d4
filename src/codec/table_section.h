// The entropy section of a part: every table that its blocks use.
#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "codec/frequency_table.h"

namespace deltawire::codec {

// A block names its table in its first byte, whose values below kFirstBlockTable mean forms without tables.
// kStep: tables 0 and 1 are for the escapes and the uncertain elements of all blocks. kAbsolute: both are
// empty; a plane's table 0 means raw bytes.
inline constexpr unsigned kEscapeTable = 0;
inline constexpr unsigned kUncertainTable = 1;
inline constexpr unsigned kFirstBlockTable = 2;
inline constexpr unsigned kMaxTables = 255;

Bytes WriteTables(std::span<const FrequencyTable> tables);
// kCorrupt unless `section` is empty or holds tables and nothing else.
Result<std::vector<FrequencyTable>> ReadTables(ByteSpan section);

}  // namespace deltawire::codec
