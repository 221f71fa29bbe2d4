// Change sets -> the bytes of an update.
#pragma once

#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "codec/codec.h"
#include "delta/grid_index.h"
#include "format/update_file.h"
#include "tensor/change_set.h"
#include "tensor/digest.h"

namespace deltawire::delta {

struct ChangedBlock {
  uint32_t block = 0;  // index in the tensor's grid
  BlockChange change;  // not empty
  Digest after;        // of the whole block's served bits in the new version
};

struct ChangedTensor {
  uint32_t tensor = 0;               // index in the inventory
  std::vector<ChangedBlock> blocks;  // ascending
  Digest after;                      // of the whole tensor in the new version
};

struct EncodedUpdate {
  format::UpdateFrame frame;
  Bytes blocks;

  uint64_t size_bytes() const { return frame.head.size() + blocks.size() + frame.tail.size(); }
  // The file in one piece.
  Bytes Join() const;
};

// tensors ascend. Each coded stream is decoded and compared before this returns (codec::Encoder). An update
// without changes is valid. Uses `parallel` over blocks.
Result<EncodedUpdate> EncodeUpdate(const format::UpdateHeader& header, const format::Inventory& inventory,
                                   const GridIndex& grid, const std::vector<ChangedTensor>& tensors,
                                   codec::Coding coding, format::EmbedInventory embed,
                                   const Parallel& parallel);

}  // namespace deltawire::delta
