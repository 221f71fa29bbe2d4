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

inline constexpr uint8_t kBlockTableVersion = 1;
// Coding ids are codec::Coding's; the table knows only this one, because its size is fixed.
inline constexpr uint8_t kDenseCoding = 0;

struct BlockEntry {
  uint32_t tensor = 0;  // index in the inventory
  Box box = {};
  // A joint block: whole tensors coded as one, in this order, `tensor` being the first; `box` is all of it.
  // Empty for a block of one tensor. Ascending, all of one width, together at most kMaxBlockElements, never
  // dense.
  std::vector<uint32_t> joined = {};
  uint8_t coding = kDenseCoding;
  uint64_t offset = 0;  // in the blocks section; implied: blocks follow each other without a hole
  uint64_t bytes = 0;
  uint64_t hash = 0;  // XXH3-64 of those bytes
  uint32_t changed = 0;
  uint32_t uncertain = 0;  // changed + uncertain <= elements; both 0 for a dense block
  Digest after = {};       // of the served bits in the new version; of a joint block, all its tensors' sum

  bool joint() const { return !joined.empty(); }

  friend bool operator==(const BlockEntry&, const BlockEntry&) = default;
};

// A tensor's whole digest in the new version. Writers that hold only a part of a tensor leave it out; tensors
// of joint blocks have none.
struct TensorEntry {
  uint32_t tensor = 0;
  Digest after = {};

  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

struct BlockTable {
  std::vector<TensorEntry> tensors;  // ascending by tensor; may name tensors without blocks here
  std::vector<BlockEntry> blocks;  // ascending by (tensor, box.start); a tensor in a joint block has no other
  uint64_t entropy_bytes = 0;      // size and XXH3-64 of the entropy section
  uint64_t entropy_hash = 0;

  friend bool operator==(const BlockTable&, const BlockTable&) = default;
};

// Orders blocks by (tensor, box.start) and lays them out: permutes `blocks` only, so call it before the bytes
// are concatenated. AssignOffsets fills `offset` from `bytes` in the given order.
void SortBlocks(BlockTable& table);
void AssignOffsets(BlockTable& table);

// Elements of a block: of its box, or of all its tensors. The tensors are the inventory's.
uint64_t BlockElements(const BlockEntry& block, const Inventory& inventory);
// "tensor a, block [0:2, 0:3]", or "joint block of 12 tensors, a to m".
std::string BlockName(const BlockEntry& block, const Inventory& inventory);

// Everything that a parsed table satisfies, with blocks_bytes the size of the blocks section: orders, indices
// and boxes inside the inventory's shapes, no two blocks sharing an element, each
// block 1..kMaxBlockElements elements, joint blocks as BlockEntry::joined says, offsets tiling
// [0, blocks_bytes), counts within the block, dense blocks of exactly elements x width bytes. kCorrupt naming
// the tensor and the box.
Status CheckBlockTable(const BlockTable& table, const Inventory& inventory, uint64_t blocks_bytes);

// The byte form of a table that CheckBlockTable accepts.
Bytes BlockTableBytes(const BlockTable& table, const Inventory& inventory);
// Total. kCorrupt with the offset in the table; kUnsupported for another table version.
Result<BlockTable> ParseBlockTable(ByteSpan bytes, const Inventory& inventory, uint64_t blocks_bytes);

// The same of a table that was read without its file: the blocks section has the size that the table says,
// at most `most_blocks_bytes`.
Result<BlockTable> ParseDetachedTable(ByteSpan bytes, const Inventory& inventory, uint64_t most_blocks_bytes);

// kCorrupt unless these are the block's bytes, by size and hash. The message does not name the block.
Status CheckBlockBytes(const BlockEntry& block, ByteSpan bytes);
// The block's bytes in `blocks`, the whole section; the offset is that of a parsed table.
ByteSpan BlockBytes(const BlockEntry& block, ByteSpan blocks);

}  // namespace deltawire::format
