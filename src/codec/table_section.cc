#include "codec/table_section.h"

#include <utility>

namespace deltawire::codec {

Bytes WriteTables(std::span<const FrequencyTable> tables) {
  BitWriter bits;
  bits.Put(tables.size(), 8);
  for (const FrequencyTable& table : tables) WriteTable(table, bits);
  Bytes section;
  bits.AppendTo(section);
  return section;
}

Result<std::vector<FrequencyTable>> ReadTables(ByteSpan section) {
  std::vector<FrequencyTable> tables;
  if (section.empty()) return tables;
  BitReader bits(section.subspan(1));
  for (unsigned i = 0; i < section[0]; ++i) {
    auto table = ReadTable(bits);
    if (!table) return Fail(std::move(table).error().Within(fmt::format("table {} of {}", i, section[0])));
    tables.push_back(*table);
  }
  if (!bits.UsedUpExactly()) {
    return Fail(Code::kCorrupt, "entropy section of {} bytes: its {} tables don't use it up exactly",
                section.size(), section[0]);
  }
  return tables;
}

}  // namespace deltawire::codec
