// What a staged version will write into one block of the live tensors, with what is there now.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "tensor/digest.h"

namespace deltawire::delta {

// Relative to the live tensor: several versions staged on each other are one StagedBlock. Sparse: ascending
// positions with old and new bits; dense: positions is empty and the bits are the whole block's.
struct StagedBlock {
  bool dense = false;
  std::vector<uint32_t> positions;
  Bytes old_bits;  // live bits; become the undo log
  Bytes new_bits;
  Digest before;  // of the block, live
  Digest after;   // of the block, once committed
};

// Bits that `staged` (may be null: nothing staged) gives at ascending positions; where it says nothing, what
// `bits` already holds (the live bits) stays.
void Overlay(const StagedBlock* staged, std::span<const uint32_t> positions, uint32_t width,
             MutableByteSpan bits);

// staged, then (positions, new_bits) on top. live_bits: the live bits at the same positions. Digests are left
// to the caller.
StagedBlock MergeStaged(const StagedBlock* staged, std::vector<uint32_t> positions, Bytes live_bits,
                        Bytes new_bits, uint32_t width);

}  // namespace deltawire::delta
