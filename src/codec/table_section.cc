#include "codec/table_section.h"

#include <utility>

namespace deltawire::codec {
namespace {

// False when bytes are missing, or it has no classes, too many, or cuts that don't ascend.
bool ReadProfile(ByteSpan& bytes, Profile& profile) {
  if (bytes.empty()) return false;
  const uint32_t classes = bytes[0];
  if (classes == 0 || classes > kernels::kMaxClasses || bytes.size() < 2 * classes) return false;
  profile.cuts.classes = classes;
  unsigned previous = 0;
  for (uint32_t c = 0; c + 1 < classes; ++c) {
    profile.cuts.cut[c] = bytes[1 + c];
    if (profile.cuts.cut[c] <= previous) return false;
    previous = profile.cuts.cut[c];
  }
  for (uint32_t c = 0; c < classes; ++c) profile.table[c] = bytes[classes + c];
  bytes = bytes.subspan(2 * classes);
  return true;
}

}  // namespace

Bytes WriteTables(const TableSection& section) {
  Bytes out{static_cast<uint8_t>(section.tables.size()), static_cast<uint8_t>(section.profiles.size())};
  for (const Profile& profile : section.profiles) {
    const uint32_t classes = profile.cuts.classes;
    out.push_back(static_cast<uint8_t>(classes));
    out.insert(out.end(), profile.cuts.cut, profile.cuts.cut + classes - 1);
    out.insert(out.end(), profile.table.begin(), profile.table.begin() + classes);
  }
  BitWriter bits;
  for (const FrequencyTable& table : section.tables) WriteTable(table, bits);
  bits.AppendTo(out);
  return out;
}

Result<TableSection> ReadTables(ByteSpan bytes) {
  TableSection section;
  if (bytes.empty()) return section;
  const auto corrupt = [&](std::string_view what) {
    return Fail(Code::kCorrupt, "entropy section of {} bytes: {}", bytes.size(), what);
  };
  if (bytes.size() < 2 || bytes[0] > kMaxTables || bytes[1] > kMaxProfiles) {
    return corrupt(fmt::format("expected at most {} tables and {} profiles", kMaxTables, kMaxProfiles));
  }
  const unsigned tables = bytes[0];
  section.profiles.resize(bytes[1]);
  ByteSpan rest = bytes.subspan(2);
  for (Profile& profile : section.profiles) {
    if (!ReadProfile(rest, profile)) return corrupt("a profile is cut off or its cuts don't ascend");
  }
  BitReader bits(rest);
  for (unsigned i = 0; i < tables; ++i) {
    auto table = ReadTable(bits);
    if (!table) return Fail(std::move(table).error().Within(fmt::format("table {} of {}", i, tables)));
    section.tables.push_back(*table);
  }
  if (!bits.UsedUpExactly()) return corrupt(fmt::format("its {} tables don't use it up exactly", tables));
  return section;
}

}  // namespace deltawire::codec
