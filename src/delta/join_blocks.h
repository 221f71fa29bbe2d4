// Which changed blocks are coded as one: small tensors share a stream, a check, a hash and a digest.
#pragma once

#include <cstdint>
#include <vector>

#include "delta/encode.h"

namespace deltawire::delta {

struct ChangedMember {
  const ChangedTensor* tensor;
  const ChangedBlock* block;
  const Box* box;
  uint32_t elements;
};

struct JointBlock {
  std::vector<ChangedMember> members;  // one, or whole tensors of one width in ascending order
  uint32_t elements = 0;               // of all members
  uint32_t width = 0;
};

// Every changed block is in exactly one result; results ascend by their first member. Only whole tensors are
// joined, up to most_elements together (0: none); those of which so much changes that they may be better off
// dense stay alone. The results point into `tensors` and `grid`. Linear in the number of blocks.
std::vector<JointBlock> JoinBlocks(const format::Inventory& inventory, const GridIndex& grid,
                                   const std::vector<ChangedTensor>& tensors, uint64_t most_elements);

// The changes of all members, with positions over their elements one after the other.
BlockChange JoinChanges(const JointBlock& block);

}  // namespace deltawire::delta
