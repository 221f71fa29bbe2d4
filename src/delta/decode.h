// The bytes of an update -> what each block says, before it meets its base.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "codec/codec.h"
#include "delta/block_member.h"
#include "delta/grid_index.h"
#include "format/update_file.h"
#include "tensor/digest.h"

namespace deltawire::delta {

struct DecodedBlock {
  std::vector<BlockMember> members;  // one, unless the block is a joint one
  Digest after;                      // sum over the members
  bool dense = false;                // of one member
  ByteSpan dense_bits;               // inside the update's bytes
  // When not dense, over the members one after the other; class blocks are still to be placed in their base.
  codec::Decoded changes;
  std::optional<uint32_t> value_check;  // of the new bits (value_check.h); step and class only
};

struct DecodedUpdate {
  format::UpdateHeader header;
  std::vector<DecodedBlock> blocks;  // ascending by their first member's (tensor, block); none has two
  std::vector<format::TensorEntry> tensors;
};

// Total: checks the container, every hash, the table against the inventory, and every stream, before anything
// is returned. kCorrupt and kMismatch name the tensor. The result's spans live as long as `file`.
Result<DecodedUpdate> DecodeUpdate(ByteSpan file, const format::Inventory& inventory, const GridIndex& grid,
                                   const Parallel& parallel);

// A row of an update's table with the bytes that it speaks of, read from wherever they stand.
struct FetchedBlock {
  const format::BlockEntry* entry;
  ByteSpan bytes;
};
// Some blocks of an update, for readers that fetch only those (pubsub/ranged_part.h): each one's hash and
// stream. entropy: the update's entropy section, its hash checked. As total as DecodeUpdate.
Result<std::vector<DecodedBlock>> DecodeBlocks(std::span<const FetchedBlock> fetched, ByteSpan entropy,
                                               const format::Inventory& inventory, const GridIndex& grid,
                                               const Parallel& parallel);

// What a standalone patch says of itself, whatever its coding; checks as far as the content hash and the
// inventory's. kNotFound when it carries no inventory.
struct PatchHead {
  format::UpdateHeader header;
  format::Inventory inventory;
};
Result<PatchHead> ReadPatchHead(ByteSpan file);

}  // namespace deltawire::delta
