#include "format/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/hash.h"
#include "format/json.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

constexpr std::string_view kWhat = "safetensors header";
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::array<std::string_view, 3> kSubByte = {"F4", "F6_E2M3", "F6_E3M2"};

Result<uint64_t> SizeBytes(const SafetensorsEntry& entry, Code code) {
  const auto count = ElementCount(entry.shape);
  const auto bytes = count ? CheckedMul(*count, DtypeBytes(entry.dtype)) : std::nullopt;
  if (!bytes) {
    return Fail(code, "tensor {}: shape {} has more bytes than 64 bits can count", Quoted(entry.name),
                ShapeText(entry.shape));
  }
  return *bytes;
}

// Collects entries while the text is scanned: a document of a million tensors would take a gigabyte.
class HeaderVisitor final : public JsonVisitor {
 public:
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;

  Status BeginObject() override {
    if (skip_ > 0) return Skip(true);
    switch (at_) {
      case At::kStart: at_ = At::kTop; return {};
      case At::kTopValue:
        at_ = name_ == kMetadata ? At::kMetadataMember : At::kEntry;
        if (at_ == At::kEntry) entries.push_back({.name = std::move(name_), .shape = {}});
        seen_ = 0;
        return {};
      case At::kUnknown: return Skip(true);
      default: return Unexpected("an object");
    }
  }
  Status EndObject() override {
    if (skip_ > 0) return Unskip(true);
    if (at_ == At::kEntry) {
      unknown_keys_.clear();
      at_ = At::kTop;
      return FinishEntry();
    }
    at_ = at_ == At::kMetadataMember ? At::kTop : At::kEnd;
    return {};
  }
  Status BeginArray() override {
    if (skip_ > 0) return Skip(false);
    switch (at_) {
      case At::kShape: at_ = At::kShapeItems; return {};
      case At::kOffsets:
        at_ = At::kOffsetItems;
        offsets_ = 0;
        return {};
      case At::kUnknown: return Skip(false);
      default: return Unexpected("an array");
    }
  }
  Status EndArray() override {
    if (skip_ > 0) return Unskip(false);
    if (at_ == At::kOffsetItems && offsets_ != 2) {
      return Fail(Code::kCorrupt, "tensor {}: data_offsets has {} items, expected 2", Quoted(Entry().name),
                  offsets_);
    }
    at_ = At::kEntry;
    return {};
  }

  Status Key(std::string&& key) override {
    if (skip_ > 0) {
      if (!nested_keys_.back().insert(key).second) return Duplicate(key);
      return {};
    }
    if (at_ == At::kEntry) return EntryKey(std::move(key));
    name_ = std::move(key);
    if (at_ == At::kMetadataMember) {
      if (metadata.contains(name_)) return Duplicate(name_);
      return {};
    }
    if (name_ == kMetadata && std::exchange(has_metadata_, true)) return Duplicate(name_);
    at_ = At::kTopValue;
    return {};
  }

  Status String(std::string&& value) override {
    if (skip_ > 0) return {};
    if (at_ == At::kMetadataMember) {
      metadata.emplace(std::move(name_), std::move(value));
      return {};
    }
    if (at_ == At::kUnknown) return Return();
    if (at_ != At::kDtype) return Unexpected("a string");
    const auto dtype = DtypeFromName(value);
    if (!dtype) {
      if (std::find(kSubByte.begin(), kSubByte.end(), value) != kSubByte.end()) {
        return Fail(Code::kUnsupported,
                    "tensor {}: dtype {} has elements smaller than a byte, which deltawire does not manage",
                    Quoted(Entry().name), value);
      }
      return Fail(Code::kCorrupt, "tensor {}: unknown dtype {}", Quoted(Entry().name), Quoted(value));
    }
    Entry().dtype = *dtype;
    return Return();
  }

  Status Unsigned(uint64_t value) override {
    if (skip_ > 0) return {};
    switch (at_) {
      case At::kShapeItems:
        if (Entry().shape.size() == kMaxSafetensorsRank) {
          return Fail(Code::kUnsupported, "tensor {}: more than {} dimensions", Quoted(Entry().name),
                      kMaxSafetensorsRank);
        }
        Entry().shape.push_back(value);
        return {};
      case At::kOffsetItems:
        if (offsets_ == 0) Entry().begin = value;
        if (offsets_ == 1) Entry().end = value;
        ++offsets_;
        return {};
      case At::kUnknown: return Return();
      default: return Unexpected("a number");
    }
  }
  Status OtherNumber(double) override {
    if (skip_ > 0) return {};
    if (at_ == At::kUnknown) return Return();
    return Unexpected("a number that is not an unsigned 64-bit integer");
  }
  Status Literal(std::optional<bool> value) override {
    if (skip_ > 0) return {};
    if (at_ == At::kUnknown) return Return();
    if (at_ == At::kTopValue && name_ == kMetadata &&
        !value) {  // null: the reference reader takes it for absent
      at_ = At::kTop;
      return {};
    }
    return Unexpected(value ? "a boolean" : "null");
  }

 private:
  enum class At : uint8_t {
    kStart,
    kTop,       // between top-level members
    kTopValue,  // value of member name_
    kMetadataMember,
    kEntry,  // between members of an entry
    kDtype,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kUnknown,  // value of an unknown member of an entry
    kEnd,
  };
  enum Seen : uint8_t { kSeenDtype = 1, kSeenShape = 2, kSeenOffsets = 4 };

  SafetensorsEntry& Entry() { return entries.back(); }

  Status EntryKey(std::string&& key) {
    if (key == "dtype") return Known(kSeenDtype, At::kDtype, key);
    if (key == "shape") return Known(kSeenShape, At::kShape, key);
    if (key == "data_offsets") return Known(kSeenOffsets, At::kOffsets, key);
    at_ = At::kUnknown;
    if (!unknown_keys_.insert(key).second) return Duplicate(key);
    return {};
  }
  Status Known(Seen field, At next, std::string_view key) {
    if (seen_ & field) return Duplicate(key);
    seen_ |= field;
    at_ = next;
    return {};
  }
  Status Return() {
    at_ = At::kEntry;
    return {};
  }
  // Containers inside unknown members: only their keys are looked at.
  Status Skip(bool object) {
    ++skip_;
    if (object) nested_keys_.emplace_back();
    return {};
  }
  Status Unskip(bool object) {
    if (object) nested_keys_.pop_back();
    if (--skip_ == 0) at_ = At::kEntry;
    return {};
  }
  Status FinishEntry() {
    constexpr std::array<std::pair<Seen, std::string_view>, 3> kFields = {
        {{kSeenDtype, "dtype"}, {kSeenShape, "shape"}, {kSeenOffsets, "data_offsets"}}};
    for (const auto& [field, name] : kFields) {
      if (!(seen_ & field)) {
        return Fail(Code::kCorrupt, "tensor {}: missing field \"{}\"", Quoted(Entry().name), name);
      }
    }
    DELTAWIRE_ASSIGN(const uint64_t bytes, SizeBytes(Entry(), Code::kCorrupt));
    if (Entry().end < Entry().begin || Entry().end - Entry().begin != bytes) {
      return Fail(Code::kCorrupt, "tensor {}: data_offsets [{}, {}] do not hold the {} bytes of {} {}",
                  Quoted(Entry().name), Entry().begin, Entry().end, bytes, DtypeName(Entry().dtype),
                  ShapeText(Entry().shape));
    }
    return {};
  }
  std::string Where() const {
    switch (at_) {
      case At::kStart: return "the top level";
      case At::kTop:
      case At::kTopValue: return Quoted(name_);
      case At::kMetadataMember: return fmt::format("__metadata__ {}", Quoted(name_));
      case At::kDtype: return fmt::format("tensor {}, dtype", Quoted(entries.back().name));
      case At::kShape:
      case At::kShapeItems: return fmt::format("tensor {}, shape", Quoted(entries.back().name));
      default: return fmt::format("tensor {}, data_offsets", Quoted(entries.back().name));
    }
  }
  Status Unexpected(std::string_view found) {
    return Fail(Code::kCorrupt, "{}: unexpected {} at {}", kWhat, found, Where());
  }
  Status Duplicate(std::string_view key) {
    return Fail(Code::kCorrupt, "{}: key {} appears twice in one object", kWhat, Quoted(key));
  }

  At at_ = At::kStart;
  std::string name_;
  uint8_t seen_ = 0;
  uint64_t offsets_ = 0;
  bool has_metadata_ = false;
  uint64_t skip_ = 0;
  std::unordered_set<std::string> unknown_keys_;
  std::vector<std::unordered_set<std::string>> nested_keys_;
};

// A name that occurs twice. Sorted by hash first: comparing a million long names with common beginnings would
// take half of the time of reading them.
const std::string* FindDuplicate(const std::vector<SafetensorsEntry>& entries) {
  std::vector<std::pair<uint64_t, const std::string*>> names;
  names.reserve(entries.size());
  for (const auto& entry : entries) names.emplace_back(Xxh3_64(AsBytes(entry.name)), &entry.name);
  std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, *a.second) < std::tie(b.first, *b.second);
  });
  for (size_t i = 1; i < names.size(); ++i) {
    if (*names[i - 1].second == *names[i].second) return names[i].second;
  }
  return nullptr;
}

// Entries in file order must follow each other from 0 without a hole; returns where they end.
Result<uint64_t> CheckTiling(const std::vector<SafetensorsEntry>& entries, Code code) {
  uint64_t at = 0;
  for (const auto& entry : entries) {
    if (entry.begin != at) {
      return Fail(code, "tensor {}: data begin at offset {}, but the data before them end at {}: {}",
                  Quoted(entry.name), entry.begin, at, entry.begin > at ? "a hole" : "an overlap");
    }
    at = entry.end;
  }
  return at;
}

Result<std::vector<SafetensorsEntry>> AssignOffsets(std::vector<SafetensorsEntry> entries) {
  uint64_t at = 0;
  for (auto& entry : entries) {
    DELTAWIRE_ASSIGN(const uint64_t bytes, SizeBytes(entry, Code::kInvalidArgument));
    const auto end = CheckedAdd(at, bytes);
    if (!end)
      return Fail(Code::kInvalidArgument, "tensor {}: the data exceed 2^64 bytes", Quoted(entry.name));
    entry.begin = at;
    entry.end = at = *end;
  }
  return entries;
}

}  // namespace

Result<uint64_t> SafetensorsHeaderBytes(ByteSpan first8, uint64_t file_size) {
  if (first8.size() < 8 || file_size < 8) {
    return Fail(Code::kCorrupt,
                "file of {} bytes: a safetensors file has at least 8; it is empty or cut short", file_size);
  }
  const auto n = LoadLe<uint64_t>(first8.data());
  if (n == 0) return Fail(Code::kCorrupt, "header length is 0; this is not a safetensors file");
  if (n > kMaxSafetensorsHeaderBytes) {
    return Fail(Code::kCorrupt, "header length {} exceeds the format's {}; this is not a safetensors file", n,
                kMaxSafetensorsHeaderBytes);
  }
  if (n > file_size - 8) {
    return Fail(Code::kCorrupt,
                "header length {} reaches past the end of a file of {} bytes; it is cut short", n, file_size);
  }
  return 8 + n;
}

Result<SafetensorsHeader> ParseSafetensors(ByteSpan prefix, uint64_t file_size) {
  DELTAWIRE_ASSIGN(const uint64_t header_bytes, SafetensorsHeaderBytes(prefix, file_size));
  if (prefix.size() < header_bytes) {
    return Fail(Code::kInvalidArgument, "{} bytes given, the header needs {}", prefix.size(), header_bytes);
  }
  HeaderVisitor visitor;
  DELTAWIRE_TRY(ScanJson(prefix.subspan(8, header_bytes - 8), {.max_bytes = kMaxSafetensorsHeaderBytes},
                         kWhat, visitor));
  if (const std::string* name = FindDuplicate(visitor.entries)) {
    return Fail(Code::kCorrupt, "tensor {}: the name appears twice", Quoted(*name));
  }
  SafetensorsHeader header{std::move(visitor.entries), std::move(visitor.metadata), header_bytes};
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  DELTAWIRE_ASSIGN(const uint64_t end, CheckTiling(header.entries, Code::kCorrupt));
  if (end != file_size - header_bytes) {
    return Fail(Code::kCorrupt, "tensors cover {} data bytes, the file has {}: {}", end,
                file_size - header_bytes,
                end < file_size - header_bytes ? "bytes follow the last tensor" : "it is cut short");
  }
  return header;
}

Result<std::vector<SafetensorsEntry>> LayoutCheckpoint(std::vector<SafetensorsEntry> entries) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  return AssignOffsets(std::move(entries));
}

Result<std::vector<SafetensorsEntry>> LayoutInOrder(std::vector<SafetensorsEntry> entries) {
  return AssignOffsets(std::move(entries));
}

Result<Bytes> WriteSafetensorsHeader(const std::vector<SafetensorsEntry>& entries,
                                     const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto separate = [&text] {
    if (text.back() != '{') text += ',';
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (!IsUtf8(key) || !IsUtf8(value)) {
        return Fail(Code::kInvalidArgument, "metadata {}: {} is not UTF-8", Quoted(key), Quoted(value));
      }
      separate();
      AppendJsonString(key, text);
      text += ':';
      AppendJsonString(value, text);
    }
    text += '}';
  }
  for (const auto& entry : entries) {
    if (entry.name.empty() || entry.name == kMetadata || entry.name.find('\0') != std::string::npos ||
        !IsUtf8(entry.name)) {
      return Fail(Code::kInvalidArgument,
                  "tensor name {} can't be written: it must be UTF-8, not empty, without NUL "
                  "and not \"__metadata__\"",
                  Quoted(entry.name));
    }
    DELTAWIRE_ASSIGN(const uint64_t bytes, SizeBytes(entry, Code::kInvalidArgument));
    if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
      return Fail(Code::kInvalidArgument, "tensor {}: offsets [{}, {}] are not laid out for {} bytes",
                  Quoted(entry.name), entry.begin, entry.end, bytes);
    }
    separate();
    AppendJsonString(entry.name, text);
    text += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        DtypeName(entry.dtype), fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  text += '}';
  DELTAWIRE_TRY(CheckTiling(entries, Code::kInvalidArgument));
  if (const std::string* name = FindDuplicate(entries)) {
    return Fail(Code::kInvalidArgument, "tensor {}: the name appears twice", Quoted(*name));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxSafetensorsHeaderBytes) {
    return Fail(Code::kInvalidArgument, "header of {} bytes exceeds the format's {}; write several files",
                text.size(), kMaxSafetensorsHeaderBytes);
  }
  Bytes out;
  out.reserve(8 + text.size());
  AppendLe<uint64_t>(text.size(), out);
  out.insert(out.end(), text.begin(), text.end());
  return out;
}

}  // namespace deltawire::format
