// An update: one safetensors file from one writer that turns version `base` into version `number`, in whole
// or in part (docs/formats/update.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "format/block_table.h"
#include "format/inventory.h"
#include "tensor/digest.h"

namespace deltawire::format {

inline constexpr std::string_view kUpdateFormat = "deltawire.update";
inline constexpr uint64_t kUpdateVersion = 1;
inline constexpr size_t kMostMoreBases = 1024;
inline constexpr std::string_view kBlocksTensor = "deltawire.blocks";
inline constexpr std::string_view kEntropyTensor = "deltawire.entropy";
inline constexpr std::string_view kInventoryTensor = "deltawire.inventory";
inline constexpr std::string_view kTableTensor = "deltawire.table";

// The file's metadata. Texts are UTF-8 without NUL.
struct UpdateHeader {
  std::string run;
  uint64_t number = 0;
  std::optional<uint64_t> base;       // nullopt: starts from no version (dense, or from a named checkpoint)
  std::string writer;                 // random id of the publisher
  std::string inventory;              // InventoryHash
  std::optional<Digest> base_digest;  // state digest before; nullopt when the update needs no base
  // Other states that it starts from as well, as a fold does from every version inside its range: at most
  // kMostMoreBases, distinct, none without base_digest. Its blocks are then dense or absolute.
  std::vector<Digest> more_bases = {};
  Digest digest;  // state digest of version `number`

  friend bool operator==(const UpdateHeader&, const UpdateHeader&) = default;
};

// Whether the update may be applied to a state with this digest.
bool StartsFrom(const UpdateHeader& header, const Digest& state);

// A range of an object with the SHA-256 of its bytes (64 hexadecimal digits).
struct HashedRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::string sha256;

  friend bool operator==(const HashedRange&, const HashedRange&) = default;
};

// The file is head, then the blocks section, then tail: so that a large blocks section is never copied.
struct UpdateFrame {
  Bytes head;
  Bytes tail;
  HashedRange table;  // where deltawire.table's data are in the file, for ManifestPart::table
};

enum class EmbedInventory : uint8_t { kNo, kYes };

// table.entropy_bytes and entropy_hash are computed from `entropy` and need not be set. kInvalidArgument when
// the table and the blocks section disagree (CheckBlockTable), the header's inventory is not that of
// `inventory`, or a text is not UTF-8 or holds NUL.
Result<UpdateFrame> FrameUpdate(const UpdateHeader& header, const BlockTable& table, ByteSpan blocks,
                                ByteSpan entropy, const Inventory& inventory,
                                EmbedInventory embed = EmbedInventory::kNo);

struct BuiltUpdate {
  Bytes file;
  HashedRange table;
};
// FrameUpdate with the sections joined.
Result<BuiltUpdate> BuildUpdate(const UpdateHeader& header, const BlockTable& table, ByteSpan blocks,
                                ByteSpan entropy, const Inventory& inventory,
                                EmbedInventory embed = EmbedInventory::kNo);

struct ParsedUpdate {
  UpdateHeader header;
  // Sections, inside the file that was parsed.
  ByteSpan blocks;
  ByteSpan entropy;
  std::optional<ByteSpan> inventory;  // compressed (DecompressInventory)
  ByteSpan table;
  uint64_t blocks_offset = 0;  // of `blocks` in the file
  uint64_t table_offset = 0;   // of `table` in the file
};

// Total. Checks the container, the metadata, the sections and the content hash of the whole file.
// kUnsupported, naming both versions, for another format version. The spans live as long as `file`.
Result<ParsedUpdate> ParseUpdate(ByteSpan file);

// The table of a parsed update, checked against the inventory: its hash against the header, and the entropy
// section against the table.
Result<BlockTable> ReadTable(const ParsedUpdate& update, const Inventory& inventory);
// The inventory that a standalone patch carries, checked against the header's hash. kNotFound when it carries
// none.
Result<Inventory> ReadInventory(const ParsedUpdate& update);

}  // namespace deltawire::format
