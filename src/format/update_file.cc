#include "format/update_file.h"

#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "format/other_version.h"
#include "format/safetensors.h"
#include "format/text.h"
#include "format/update_metadata.h"

namespace deltawire::format {
namespace {

// Four entries and ten short texts take about 700 bytes; more is not ours.
constexpr uint64_t kMaxHeaderBytes = 64u << 10;
constexpr std::string_view kContent = "content";

Status CheckSections(const std::vector<SafetensorsEntry>& entries) {
  std::vector<std::string_view> expected = {kBlocksTensor, kEntropyTensor, kTableTensor};
  if (entries.size() == 4) expected.insert(expected.begin() + 2, kInventoryTensor);
  if (entries.size() != expected.size()) {
    return Fail(Code::kCorrupt, "update: {} tensors, expected 3, or 4 with an inventory", entries.size());
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].name != expected[i]) {
      return Fail(Code::kCorrupt, "update: tensor {} where \"{}\" was expected", Quoted(entries[i].name),
                  expected[i]);
    }
    if (entries[i].dtype != Dtype::kU8 || entries[i].shape.size() != 1) {
      return Fail(Code::kCorrupt, "update: tensor \"{}\" is {} {}, expected U8 with one dimension",
                  expected[i], DtypeName(entries[i].dtype), ShapeText(entries[i].shape));
    }
  }
  return {};
}

}  // namespace

Result<UpdateFrame> FrameUpdate(const UpdateHeader& header, const BlockTable& table, ByteSpan blocks,
                                ByteSpan entropy, const Inventory& inventory, EmbedInventory embed) {
  DELTAWIRE_TRY(CheckUpdateHeader(header, Code::kInvalidArgument));
  if (const std::string hash = InventoryHash(inventory); hash != header.inventory) {
    return Fail(Code::kInvalidArgument, "update: the header names inventory {}, the one given is {}",
                header.inventory, hash);
  }
  if (const Status valid = CheckBlockTable(table, inventory, blocks.size()); !valid) {
    return Fail(Code::kInvalidArgument, "{}", valid.error().message());
  }
  BlockTable complete = table;
  complete.entropy_bytes = entropy.size();
  complete.entropy_hash = Xxh3_64(entropy);
  const Bytes table_bytes = BlockTableBytes(complete, inventory);

  const auto section = [](std::string_view name, uint64_t bytes) {
    return SafetensorsEntry{.name = std::string(name), .dtype = Dtype::kU8, .shape = {bytes}};
  };
  UpdateFrame frame;
  frame.tail.assign(entropy.begin(), entropy.end());
  std::vector<SafetensorsEntry> entries = {section(kBlocksTensor, blocks.size()),
                                           section(kEntropyTensor, entropy.size())};
  if (embed == EmbedInventory::kYes) {
    DELTAWIRE_ASSIGN(const Bytes compressed, CompressInventory(inventory));
    frame.tail.insert(frame.tail.end(), compressed.begin(), compressed.end());
    entries.push_back(section(kInventoryTensor, compressed.size()));
  }
  frame.tail.insert(frame.tail.end(), table_bytes.begin(), table_bytes.end());
  entries.push_back(section(kTableTensor, table_bytes.size()));

  DELTAWIRE_ASSIGN(entries, LayoutInOrder(std::move(entries)));
  Metadata metadata = UpdateHeaderMetadata(header);
  metadata.emplace("format", kUpdateFormat);
  metadata.emplace("format_version", std::to_string(kUpdateVersion));
  metadata.emplace(kContent, UpdateContentHash(metadata, kContent, entries, {blocks, frame.tail}));
  DELTAWIRE_ASSIGN(frame.head, WriteSafetensorsHeader(entries, metadata));
  frame.table = {.offset = frame.head.size() + entries.back().begin,
                 .bytes = table_bytes.size(),
                 .sha256 = ToHex(Sha256(table_bytes))};
  return frame;
}

Result<BuiltUpdate> BuildUpdate(const UpdateHeader& header, const BlockTable& table, ByteSpan blocks,
                                ByteSpan entropy, const Inventory& inventory, EmbedInventory embed) {
  DELTAWIRE_ASSIGN(UpdateFrame frame, FrameUpdate(header, table, blocks, entropy, inventory, embed));
  Bytes file = std::move(frame.head);
  file.reserve(file.size() + blocks.size() + frame.tail.size());
  file.insert(file.end(), blocks.begin(), blocks.end());
  file.insert(file.end(), frame.tail.begin(), frame.tail.end());
  return BuiltUpdate{std::move(file), std::move(frame.table)};
}

Result<ParsedUpdate> ParseUpdate(ByteSpan file) {
  DELTAWIRE_ASSIGN(const uint64_t header_bytes, SafetensorsHeaderBytes(file, file.size()));
  if (header_bytes > kMaxHeaderBytes) {
    return Fail(Code::kCorrupt, "update: header of {} bytes, expected at most {}; this is not an update",
                header_bytes, kMaxHeaderBytes);
  }
  DELTAWIRE_ASSIGN(const SafetensorsHeader container, ParseSafetensors(file, file.size()));
  const auto text = [&](const std::string& key) -> Result<std::string> {
    const auto found = container.metadata.find(key);
    if (found == container.metadata.end()) return Fail(Code::kCorrupt, "update: metadata has no \"{}\"", key);
    return found->second;
  };
  DELTAWIRE_ASSIGN(const std::string format, text("format"));
  if (format != kUpdateFormat) {
    return Fail(Code::kCorrupt, "update: format is {}, expected \"{}\"", Quoted(format), kUpdateFormat);
  }
  DELTAWIRE_ASSIGN(const std::string version, text("format_version"));
  if (version != std::to_string(kUpdateVersion)) return Fail(OtherVersion("update", version, kUpdateVersion));
  DELTAWIRE_TRY(CheckSections(container.entries));
  const ByteSpan data = file.subspan(container.data_offset);
  DELTAWIRE_ASSIGN(const std::string content, text(std::string(kContent)));
  if (const std::string found = UpdateContentHash(container.metadata, kContent, container.entries, {data});
      found != content) {
    return Fail(Code::kCorrupt, "update: content hash is {}, the file says {}; it is damaged, fetch it again",
                found, Quoted(content));
  }
  ParsedUpdate update;
  DELTAWIRE_ASSIGN(update.header, UpdateHeaderFrom(container.metadata));
  const auto section = [&](size_t i) {
    return data.subspan(container.entries[i].begin, container.entries[i].end - container.entries[i].begin);
  };
  update.blocks = section(0);
  update.entropy = section(1);
  if (container.entries.size() == 4) update.inventory = section(2);
  update.table = section(container.entries.size() - 1);
  update.blocks_offset = container.data_offset;
  update.table_offset = container.data_offset + container.entries.back().begin;
  return update;
}

Result<BlockTable> ReadTable(const ParsedUpdate& update, const Inventory& inventory) {
  if (const std::string hash = InventoryHash(inventory); hash != update.header.inventory) {
    return Fail(Code::kMismatch, "update {}: made for inventory {}, the one at hand is {}",
                update.header.number, update.header.inventory, hash);
  }
  DELTAWIRE_ASSIGN(BlockTable table, ParseBlockTable(update.table, inventory, update.blocks.size()));
  if (table.entropy_bytes != update.entropy.size() || table.entropy_hash != Xxh3_64(update.entropy)) {
    return Fail(Code::kCorrupt,
                "update {}: the entropy section of {} bytes is not the {} bytes that the table names",
                update.header.number, update.entropy.size(), table.entropy_bytes);
  }
  return table;
}

Result<Inventory> ReadInventory(const ParsedUpdate& update) {
  if (!update.inventory) {
    return Fail(Code::kNotFound, "update {}: it carries no inventory; only standalone patches do",
                update.header.number);
  }
  DELTAWIRE_ASSIGN(Inventory inventory, DecompressInventory(*update.inventory));
  if (const std::string hash = InventoryHash(inventory); hash != update.header.inventory) {
    return Fail(Code::kCorrupt, "update {}: carries inventory {}, the header names {}", update.header.number,
                hash, update.header.inventory);
  }
  return inventory;
}

}  // namespace deltawire::format
