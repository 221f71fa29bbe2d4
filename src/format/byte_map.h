// What every byte of a file means: `deltawire inspect`, and a reader's guide beside a hex editor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "format/block_table.h"
#include "format/inventory.h"
#include "format/update_file.h"

namespace deltawire::format {

enum class FileKind : uint8_t {
  kSafetensors,
  kUpdate,
  kOpen,  // a patch of index and value tensors: ours in coding `open`, or TRL's
  kManifest,
  kAnchorManifest,
  kInventory,
  kDigestTable
};
// "safetensors", "update", "open patch", "manifest", "anchor manifest", "inventory", "digest table".
std::string_view FileKindName(FileKind kind);

// By the file's first bytes, its safetensors metadata or its JSON field "format". kCorrupt when it is none of
// these; says nothing about the rest of the file. Memory O(header).
Result<FileKind> KindOf(ByteSpan file);

// [begin, end) and what stands there; one line. Ranges without bytes (an empty tensor) have begin = end.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string meaning;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

struct ByteMap {
  FileKind kind = FileKind::kSafetensors;
  std::vector<ByteRange> ranges;  // in order, from 0 to the file's size without a hole
  std::optional<UpdateHeader> update;
  uint64_t blocks_offset = 0;          // kUpdate: of the blocks section in the file
  std::optional<Inventory> inventory;  // kInventory; kUpdate: the given or embedded one
  std::optional<BlockTable> table;     // kUpdate whose inventory is known
};

// Checks the file as its parser does (an update's content hash and block table included), then maps it.
// inventory names the tensors of an update that carries none; without one its blocks stay one range.
Result<ByteMap> MapBytes(ByteSpan file, const Inventory* inventory = nullptr);

}  // namespace deltawire::format
