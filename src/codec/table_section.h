// The entropy section of a part: every table that its blocks use, and which table a class of the base has.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "codec/frequency_table.h"
#include "kernels/class_walk.h"

namespace deltawire::codec {

// A block names its table (kAbsolute, kStep) or profile (kClass) in its first byte (plain_form.h). kStep,
// kClass: tables 0 and 1 are for the escapes and the uncertain elements of all blocks. kAbsolute: both are
// empty; a plane's table 0 means raw bytes.
inline constexpr unsigned kEscapeTable = 0;
inline constexpr unsigned kUncertainTable = 1;
inline constexpr unsigned kFirstBlockTable = 2;
inline constexpr unsigned kMaxTables = 254;
inline constexpr unsigned kMaxProfiles = 252;

// How a block's base is cut into classes, and each class's table; 0 where nothing of the class can be listed.
struct Profile {
  kernels::ClassCuts cuts;
  std::array<uint8_t, kernels::kMaxClasses> table{};
};

struct TableSection {
  std::vector<FrequencyTable> tables;
  std::vector<Profile> profiles;
};

Bytes WriteTables(const TableSection& section);
// kCorrupt unless `bytes` is empty or holds tables and profiles and nothing else.
Result<TableSection> ReadTables(ByteSpan bytes);

}  // namespace deltawire::codec
