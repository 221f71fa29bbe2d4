// Change sets -> the bytes of an update.
#pragma once

#include <cstdint>
#include <functional>
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

// What class coding needs beside the changes: the served bits of the new version.
struct ClassSource {
  // Bits of a box to out, which has their size. Called from several threads.
  std::function<Status(uint32_t tensor, const Box& box, MutableByteSpan out)> read;
  // The same bits where they stand, if they stay there while the update is encoded: then nothing is copied.
  // An empty span where the box's elements don't follow each other in host memory. May be null.
  std::function<ByteSpan(uint32_t tensor, const Box& box)> view;
  // At most so many classes; 12 gains about 1 % where more than 1 % has changed.
  uint32_t most_classes = 8;
  const kernels::ClassTable* walk = &kernels::CpuClassTable();
};

struct EncodeOptions {
  codec::Coding coding = codec::Coding::kStep;
  format::EmbedInventory embed = format::EmbedInventory::kNo;
  // Small tensors are coded as one (a joint block) up to so many elements together, at most and by default
  // kMaxBlockElements. 0: each tensor by itself, for readers that want single tensors of an update.
  uint64_t most_joint_elements = kMaxBlockElements;
  ClassSource source = {};  // for kClass; else used, where it is there, for blocks that become dense
};

// tensors ascend. Each coded stream is decoded and compared before this returns (codec::Encoder). An update
// without changes is valid. A block whose stream would be larger than its bits becomes dense where these are
// known. kInvalidArgument for kClass without options.source.read. Uses `parallel` over blocks.
Result<EncodedUpdate> EncodeUpdate(const format::UpdateHeader& header, const format::Inventory& inventory,
                                   const GridIndex& grid, const std::vector<ChangedTensor>& tensors,
                                   const EncodeOptions& options, const Parallel& parallel);

}  // namespace deltawire::delta
