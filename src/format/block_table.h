// The block table: what each byte range of an update says about which box (docs/formats/block-table.md).
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "format/inventory.h"
#include "tensor/digest.h"
#include "tensor/shape.h"

namespace deltawire::format {

inline constexpr uint8_t kBlockTableVersion = 0;
// Coding ids are codec::Coding's; the table knows only this one, because its size is fixed.
inline constexpr uint8_t kDenseCoding = 0;

struct BlockEntry {
  uint32_t tensor = 0;  // index in the inventory
  Box box = {};
  uint8_t coding = kDenseCoding;
  uint64_t offset = 0;  // in the blocks section; implied: blocks follow each other without a hole
  uint64_t bytes = 0;
  uint64_t hash = 0;  // XXH3-64 of those bytes
  uint32_t changed = 0;
  uint32_t uncertain = 0;  // changed + uncertain <= elements of box
  Digest after = {};       // of the box's served bits in the new version

  friend bool operator==(const BlockEntry&, const BlockEntry&) = default;
};

// A tensor's whole digest in the new version. Writers that hold only a part of a tensor leave it out.
struct TensorEntry {
  uint32_t tensor = 0;
  Digest after = {};

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct BlockTable {
  std::vector<TensorEntry> tensors;  // ascending by tensor; may name tensors without blocks here
  std::vector<BlockEntry> blocks;    // ascending by (tensor, box.start)
  uint64_t entropy_bytes = 0;        // size and XXH3-64 of the entropy section
  uint64_t entropy_hash = 0;

  friend bool operator==(const BlockTable&, const BlockTable&) = default;
};

// Orders blocks by (tensor, box.start) and lays them out: permutes `blocks` only, so call it before the bytes
// are concatenated. AssignOffsets fills `offset` from `bytes` in the given order.
void SortBlocks(BlockTable& table);
void AssignOffsets(BlockTable& table);

// Everything that a parsed table satisfies, with blocks_bytes the size of the blocks section: orders, indices
// and boxes inside the inventory's shapes, no two boxes of a tensor overlapping, each
// box 1..kMaxBlockElements elements, offsets tiling [0, blocks_bytes), counts within the box, dense blocks of
// exactly elements x width bytes. kCorrupt naming the tensor and the box.
Status CheckBlockTable(const BlockTable& table, const Inventory& inventory, uint64_t blocks_bytes);

// The byte form of a table that CheckBlockTable accepts.
Bytes BlockTableBytes(const BlockTable& table, const Inventory& inventory);
// Total. kCorrupt with the offset in the table; kUnsupported for another table version.
Result<BlockTable> ParseBlockTable(ByteSpan bytes, const Inventory& inventory, uint64_t blocks_bytes);

// kCorrupt unless the block's range lies inside `blocks` (the whole section) and has its hash.
Status CheckBlock(const BlockEntry& block, ByteSpan blocks);

}  // namespace deltawire::format
