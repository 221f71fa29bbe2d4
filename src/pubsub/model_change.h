// The difference between a base checkpoint and what an input makes of it, as change lists on the host.
#pragma once

#include <optional>
#include <vector>

#include "delta/encode.h"
#include "delta/grid_index.h"
#include "format/inventory.h"
#include "pubsub/checkpoint.h"
#include "pubsub/new_tensors.h"
#include "pubsub/patch_file.h"

namespace deltawire::pubsub {

class ModelChange {
 public:
  // Reads the base once and compares it with `now`. Memory: the changes, and two or three times the largest
  // tensor for each thread. kCorrupt when the new state is not the one that `now` names. base outlives the
  // result.
  static Result<ModelChange> Find(const Checkpoint& base, const NewTensors& now, const PatchOptions& options);

  const format::Inventory& inventory() const { return inventory_; }
  const delta::GridIndex& grid() const { return *grid_; }
  const Digest& before() const { return before_; }
  const Digest& after() const { return after_; }
  // Ascending; all tensors, those without changes with no blocks.
  const std::vector<delta::ChangedTensor>& tensors() const { return tensors_; }
  uint64_t changed() const;  // elements
  uint64_t total() const;

  // The new bits of a box whose elements follow each other in their tensor.
  void ReadNew(uint32_t tensor, const Box& box, MutableByteSpan bits) const;
  // The base's bits of a whole tensor.
  ByteSpan BaseBits(uint32_t tensor) const;

 private:
  const Checkpoint* base_ = nullptr;
  format::Inventory inventory_;
  std::unique_ptr<delta::GridIndex> grid_;
  Digest before_;
  Digest after_;
  std::vector<delta::ChangedTensor> tensors_;
};

}  // namespace deltawire::pubsub
