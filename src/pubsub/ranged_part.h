// Reads of a stored part that fetch only the blocks of some tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "delta/decode.h"
#include "format/manifest.h"
#include "store/store.h"

namespace deltawire::pubsub {

struct RangedBlocks {
  std::vector<delta::DecodedBlock> blocks;  // every block that has one of the tensors, whole; ascending
  std::vector<Bytes> ranges;                // what `blocks` points into
  uint64_t bytes_read = 0;                  // from the store, with table and tables
  uint64_t reads = 0;
};

// The blocks of `tensors` (inventory indices, ascending) in one part of a version: reads the block table,
// which the manifest pins by SHA-256, the entropy tables, and then only the blocks' ranges, neighbours in one
// read. Each is checked against its hash in the table; what a block does to a tensor is proved by its digest
// `after` when it is staged. kCorrupt naming the tensor or the range. Errors of the store as they are.
// kUnsupported for a part without a block table (coding "open").
Result<RangedBlocks> ReadRanges(Store& store, const format::ManifestPart& part,
                                std::span<const uint32_t> tensors, const format::Inventory& inventory,
                                const delta::GridIndex& grid, const Parallel& parallel);

}  // namespace deltawire::pubsub
