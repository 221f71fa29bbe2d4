// What a block of an update is made of: one block of a tensor's grid, or several whole tensors (a joint
// block).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "codec/codec.h"
#include "delta/grid_index.h"
#include "format/block_table.h"

namespace deltawire::delta {

struct BlockMember {
  uint32_t tensor = 0;
  uint32_t block = 0;  // index in the tensor's grid
  uint32_t first = 0;  // position, in the update's block, of its first element
  uint32_t elements = 0;

  friend bool operator==(const BlockMember&, const BlockMember&) = default;
};

// The members of a row of a table that CheckBlockTable accepts, ascending. kUnsupported for a box that is no
// block of the tensor's grid, and for joined tensors that their grid cuts.
Result<std::vector<BlockMember>> MembersOf(const format::BlockEntry& entry,
                                           const format::Inventory& inventory, const GridIndex& grid);

// "tensor a, block [0:64, 0:576]", or "joint block of 12 tensors, a to m".
std::string MembersText(std::span<const BlockMember> members, const format::Inventory& inventory,
                        const GridIndex& grid);

// One member's part of an ascending list of a block's positions: [begin, end) of the list. `from` is where
// the member before ended.
struct ListRange {
  size_t begin = 0;
  size_t end = 0;
};
ListRange RangeOf(const BlockMember& member, std::span<const uint32_t> positions, size_t from = 0);
// The positions of that part, in the member.
std::vector<uint32_t> PositionsIn(const BlockMember& member, std::span<const uint32_t> positions,
                                  const ListRange& range);

// One member's part of a block's changes, with positions in the member. changes: not ranked. The populations
// are those of the whole block and are left out.
codec::Decoded ChangesOf(const BlockMember& member, const codec::Decoded& changes);

}  // namespace deltawire::delta
