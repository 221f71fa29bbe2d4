// The bytes of an update -> what each block says, before it meets its base.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "codec/codec.h"
#include "delta/grid_index.h"
#include "format/update_file.h"
#include "tensor/digest.h"

namespace deltawire::delta {

struct DecodedBlock {
  uint32_t tensor = 0;
  uint32_t block = 0;  // index in the tensor's grid
  Digest after;
  bool dense = false;
  ByteSpan dense_bits;                  // inside the update's bytes
  codec::Decoded changes;               // when not dense; class blocks are still to be placed in their base
  std::optional<uint32_t> value_check;  // of the new bits (value_check.h); step and class only
};

struct DecodedUpdate {
  format::UpdateHeader header;
  std::vector<DecodedBlock> blocks;  // ascending by (tensor, block)
  std::vector<format::TensorEntry> tensors;
};

// Total: checks the container, every hash, the table against the inventory, and every stream, before anything
// is returned. kCorrupt and kMismatch name the tensor. The result's spans live as long as `file`.
Result<DecodedUpdate> DecodeUpdate(ByteSpan file, const format::Inventory& inventory, const GridIndex& grid,
                                   const Parallel& parallel);

}  // namespace deltawire::delta
