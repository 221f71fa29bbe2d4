#include "format/byte_map.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "format/binary.h"
#include "format/digests.h"
#include "format/json.h"
#include "format/manifest.h"
#include "format/open_patch.h"
#include "format/safetensors.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

constexpr uint64_t kDigestBytes = 16;
constexpr uint64_t kDigestTableHeader = 16;

// Members of our JSON files, whichever file they stand in.
constexpr std::pair<std::string_view, std::string_view> kJsonMeanings[] = {
    {"alias_of", "the version with the same bits"},
    {"attempt", "random id of this publish"},
    {"base", "what this version starts from"},
    {"cast_rule", "the rule that chose the casts"},
    {"content", "XXH3-128 of this text"},
    {"counts", "elements"},
    {"created_unix_ns", "the publisher's clock"},
    {"detectors", "how changes were found, and why so"},
    {"digest", "state digest of all served bits"},
    {"files", "the checkpoint's files with their hashes"},
    {"format", "what this file is"},
    {"format_version", "version of its format"},
    {"inventory", "SHA-256 of the inventory"},
    {"manifest", "SHA-256 of the version's manifest"},
    {"number", "version number"},
    {"parts", "update files with their hashes"},
    {"run", "the run"},
    {"steps", "optimizer steps since the version before"},
    {"tensor_digests", "the table of all tensors' digests"},
    {"tensors", "the served tensors"},
    {"writer", "random id of the publisher"},
};

std::string_view JsonMeaning(std::string_view key) {
  const auto* found = std::find_if(std::begin(kJsonMeanings), std::end(kJsonMeanings),
                                   [&](const auto& known) { return known.first == key; });
  return found == std::end(kJsonMeanings) ? "ignored" : found->second;
}

std::string Shortened(std::string_view text) {
  constexpr size_t kLongest = 60;
  if (text.size() <= kLongest) return std::string(text);
  size_t end = kLongest;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;  // inside a UTF-8 sequence
  return fmt::format("{}... ({} bytes)", text.substr(0, end), text.size());
}

// The members of one JSON object: raw key and value, and where the member begins (at its key).
struct Member {
  size_t begin;
  std::string_view key;
  std::string_view value;
};

// text: one valid JSON object, with white space around it at most. close: where its closing brace stands.
std::vector<Member> MembersOf(std::string_view text, size_t& close) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<Member> members;
  size_t at = text.find('{') + 1;
  const auto skip_string = [&] {
    for (++at; text[at] != '"'; ++at) {
      if (text[at] == '\\') ++at;
    }
    ++at;
  };
  for (;;) {
    at = text.find_first_not_of(" \t\r\n,", at);
    if (text[at] == '}') break;
    Member member{at, {}, {}};
    skip_string();
    member.key = text.substr(member.begin + 1, at - member.begin - 2);
    at = text.find_first_not_of(kSpace, text.find(':', at) + 1);
    const size_t value = at;
    for (int depth = 0; depth > 0 || (text[at] != ',' && text[at] != '}');) {
      if (text[at] == '"') {
        skip_string();
        continue;
      }
      if (text[at] == '{' || text[at] == '[') ++depth;
      if (text[at] == '}' || text[at] == ']') --depth;
      ++at;
    }
    const size_t last = text.find_last_not_of(kSpace, at - 1);
    member.value = text.substr(value, last + 1 - value);
    members.push_back(member);
  }
  close = at;
  return members;
}

class Mapper {
 public:
  explicit Mapper(ByteSpan file) : file_(file) {}

  ByteMap& map() { return map_; }
  void Add(uint64_t end, std::string meaning) {
    map_.ranges.push_back({at_, end, std::move(meaning)});
    at_ = end;
  }

  // A JSON object that fills [at_, end), member by member.
  template <class Describe>
  void AddJson(uint64_t end, Describe&& describe) {
    const uint64_t base = at_;
    const std::string_view text = AsText(file_.subspan(base, end - base));
    size_t close = 0;
    const std::vector<Member> members = MembersOf(text, close);
    Add(base + (members.empty() ? close : members.front().begin), "JSON: opening brace");
    for (size_t i = 0; i < members.size(); ++i) {
      Add(base + (i + 1 < members.size() ? members[i + 1].begin : close), describe(members[i]));
    }
    Add(base + close + 1, "JSON: closing brace");
    if (at_ < end) Add(end, "JSON: padding");
  }

  void AddOurJson() {
    AddJson(file_.size(), [](const Member& member) {
      return fmt::format("{}: {} = {}", member.key, JsonMeaning(member.key), Shortened(member.value));
    });
  }

  void AddContainerHeader(const SafetensorsHeader& header) {
    Add(8, fmt::format("safetensors: header length {}", header.data_offset - 8));
    AddJson(header.data_offset, [](const Member& member) {
      return member.key == "__metadata__"
                 ? fmt::format("header: metadata {}", Shortened(member.value))
                 : fmt::format("header: tensor {} {}", Shortened(member.key), member.value);
    });
  }

  Status AddDigestTable() {
    if (file_.size() < kDigestTableHeader) return ParseDigestTable(file_, 0).map([](const auto&) {});
    DELTAWIRE_ASSIGN(const auto digests, ParseDigestTable(file_, LoadLe<uint64_t>(file_.data() + 8)));
    Add(4, "magic \"DWDT\"");
    Add(8, fmt::format("format version {}", kDigestTableVersion));
    Add(kDigestTableHeader, fmt::format("number of tensors: {}", digests.size()));
    for (size_t i = 0; i < digests.size(); ++i) {
      Add(at_ + kDigestBytes, fmt::format("digest of inventory tensor {} = {}", i, digests[i].Hex()));
    }
    return {};
  }

  Status AddUpdate(const Inventory* inventory);

 private:
  std::string BlockMeaning(const BlockEntry& block) const {
    const std::string name = BlockName(block, *map_.inventory);
    if (block.coding == kDenseCoding) return name + ", dense";
    return fmt::format("{}, coding {}: {} changed, {} uncertain", name, block.coding, block.changed,
                       block.uncertain);
  }
  const std::string& TensorName(uint32_t tensor) const { return map_.inventory->tensors[tensor].name; }
  Status AddTable(ByteSpan bytes);

  ByteSpan file_;
  uint64_t at_ = 0;
  ByteMap map_;
};

Status Mapper::AddUpdate(const Inventory* inventory) {
  DELTAWIRE_ASSIGN(const ParsedUpdate update, ParseUpdate(file_));
  DELTAWIRE_ASSIGN(const SafetensorsHeader header, ParseSafetensors(file_, file_.size()));
  map_.update = update.header;
  map_.blocks_offset = update.blocks_offset;
  if (update.inventory) {
    DELTAWIRE_ASSIGN(map_.inventory, ReadInventory(update));
  } else if (inventory != nullptr) {
    map_.inventory = *inventory;
  }
  if (map_.inventory) {
    DELTAWIRE_ASSIGN(map_.table, ReadTable(update, *map_.inventory));
  }

  AddContainerHeader(header);
  if (map_.table) {
    for (const BlockEntry& block : map_.table->blocks)
      Add(at_ + block.bytes, "stream of " + BlockMeaning(block));
  } else {
    Add(at_ + update.blocks.size(), "blocks section (its cuts need the run's inventory)");
  }
  Add(at_ + update.entropy.size(), "entropy section: the frequency tables that all blocks share");
  if (update.inventory) {
    BinaryReader reader(*update.inventory, "inventory section");
    DELTAWIRE_ASSIGN(const uint64_t inflated, reader.Varint("size"));
    Add(at_ + reader.offset(), fmt::format("inventory: {} bytes when inflated", inflated));
    Add(at_ + reader.remaining(),
        fmt::format("inventory: zlib stream, {} tensors", map_.inventory->tensors.size()));
  }
  if (map_.table) return AddTable(update.table);
  Add(file_.size(), "block table (its rows need the run's inventory)");
  return {};
}

// Walks bytes that ParseBlockTable has accepted (docs/formats/block-table.md).
Status Mapper::AddTable(ByteSpan bytes) {
  const uint64_t base = at_;
  BinaryReader reader(bytes, "block table");
  const auto to_here = [&](std::string meaning) {
    Add(base + reader.offset(), "table: " + std::move(meaning));
  };
  DELTAWIRE_TRY(reader.Take(4, "magic"));
  to_here("magic \"DWBT\"");
  DELTAWIRE_ASSIGN(const uint8_t version, reader.Byte("version"));
  to_here(fmt::format("format version {}", version));
  DELTAWIRE_ASSIGN(const uint64_t entropy_bytes, reader.Varint("entropy bytes"));
  DELTAWIRE_TRY(reader.U64("entropy hash"));
  to_here(fmt::format("size ({}) and hash of the entropy section", entropy_bytes));
  DELTAWIRE_ASSIGN(const uint64_t groups, reader.Varint("number of tensors"));
  to_here(fmt::format("number of groups: {}", groups));
  uint64_t tensor = 0;
  size_t next_block = 0;
  for (uint64_t group = 0; group < groups; ++group) {
    DELTAWIRE_ASSIGN(const uint64_t step, reader.Varint("tensor index"));
    tensor += step + (group > 0 ? 1 : 0);
    DELTAWIRE_ASSIGN(const uint8_t flags, reader.Byte("flags"));
    const bool whole = flags & 1;
    const bool digest = flags & 2;
    const bool joint = flags & 8;
    uint64_t count = 1;
    if (joint) {
      DELTAWIRE_ASSIGN(const uint64_t stretches, reader.Varint("stretches"));
      for (uint64_t field = 0; field < 1 + 2 * stretches; ++field) DELTAWIRE_TRY(reader.Varint("stretch"));
    } else if (!whole) {
      DELTAWIRE_ASSIGN(count, reader.Varint("number of blocks"));
    }
    if (digest) DELTAWIRE_TRY(reader.ReadDigest("tensor digest"));
    to_here(fmt::format("tensor {}: index, flags{}{}", Quoted(TensorName(static_cast<uint32_t>(tensor))),
                        joint   ? ", tensors joined with it"
                        : whole ? ""
                                : ", number of blocks",
                        digest ? ", digest" : ""));
    for (uint64_t i = 0; i < count; ++i) {
      if (!whole && !joint) {
        DELTAWIRE_ASSIGN(const uint64_t cut, reader.Varint("mask of cut dimensions"));
        for (int field = 2 * std::popcount(cut); field > 0; --field) DELTAWIRE_TRY(reader.Varint("box"));
      }
      DELTAWIRE_ASSIGN(const uint8_t coding, reader.Byte("coding"));
      if (coding != kDenseCoding) {
        for (const auto* field : {"bytes", "changed", "uncertain"}) DELTAWIRE_TRY(reader.Varint(field));
      }
      DELTAWIRE_TRY(reader.U64("hash"));
      DELTAWIRE_TRY(reader.ReadDigest("block digest"));
      to_here("row of " + BlockMeaning(map_.table->blocks[next_block++]));
    }
  }
  return reader.End();
}

Result<FileKind> JsonKind(ByteSpan file) {
  const JsonLimits limits{.max_bytes = kMaxInventoryBytes};
  DELTAWIRE_ASSIGN(const auto root, ParseJson(file, limits, "file"));
  DELTAWIRE_ASSIGN(const JsonObject object, JsonObject::From(root, "file"));
  DELTAWIRE_ASSIGN(const std::string format, object.String("format"));
  if (format == "deltawire.manifest") return FileKind::kManifest;
  if (format == "deltawire.anchor") return FileKind::kAnchorManifest;
  if (format == "deltawire.inventory") return FileKind::kInventory;
  return Fail(
      Code::kCorrupt,
      "format is {}, expected \"deltawire.manifest\", \"deltawire.anchor\" or \"deltawire.inventory\"",
      Quoted(format));
}

}  // namespace

std::string_view FileKindName(FileKind kind) {
  switch (kind) {
    case FileKind::kSafetensors: return "safetensors";
    case FileKind::kUpdate: return "update";
    case FileKind::kOpen: return "open patch";
    case FileKind::kManifest: return "manifest";
    case FileKind::kAnchorManifest: return "anchor manifest";
    case FileKind::kInventory: return "inventory";
    case FileKind::kDigestTable: return "digest table";
  }
  return "unknown";
}

Result<FileKind> KindOf(ByteSpan file) {
  if (file.size() >= 4 && AsText(file.first(4)) == "DWDT") return FileKind::kDigestTable;
  // A header length below 2^32 has four zero bytes, which no JSON text has.
  const bool container = file.size() >= 8 && LoadLe<uint32_t>(file.data() + 4) == 0;
  if (!container && !file.empty() && file[0] == '{') return JsonKind(file);
  DELTAWIRE_ASSIGN(const SafetensorsHeader header, ParseSafetensors(file, file.size()));
  const auto format = header.metadata.find("format");
  if (format == header.metadata.end()) return FileKind::kSafetensors;
  if (format->second == kSparsePatchFormat) return FileKind::kOpen;
  return format->second == kUpdateFormat ? FileKind::kUpdate : FileKind::kSafetensors;
}

Result<ByteMap> MapBytes(ByteSpan file, const Inventory* inventory) {
  DELTAWIRE_ASSIGN(const FileKind kind, KindOf(file));
  Mapper mapper(file);
  mapper.map().kind = kind;
  switch (kind) {
    case FileKind::kUpdate: DELTAWIRE_TRY(mapper.AddUpdate(inventory)); break;
    case FileKind::kDigestTable: DELTAWIRE_TRY(mapper.AddDigestTable()); break;
    case FileKind::kOpen: {
      DELTAWIRE_ASSIGN(const OpenPatch patch, ParseOpenPatch(file));
      mapper.map().update = patch.header;
      [[fallthrough]];
    }
    case FileKind::kSafetensors: {
      DELTAWIRE_ASSIGN(const SafetensorsHeader header, ParseSafetensors(file, file.size()));
      mapper.AddContainerHeader(header);
      for (const auto& entry : header.entries) {
        mapper.Add(header.data_offset + entry.end,
                   fmt::format("tensor {}: {} {}", Quoted(entry.name), DtypeName(entry.dtype),
                               ShapeText(entry.shape)));
      }
      break;
    }
    case FileKind::kManifest:
      DELTAWIRE_TRY(ParseManifest(file));
      mapper.AddOurJson();
      break;
    case FileKind::kAnchorManifest:
      DELTAWIRE_TRY(ParseAnchorManifest(file));
      mapper.AddOurJson();
      break;
    case FileKind::kInventory: {
      DELTAWIRE_ASSIGN(mapper.map().inventory, ParseInventory(file));
      mapper.AddOurJson();
      break;
    }
  }
  return std::move(mapper.map());
}

}  // namespace deltawire::format
