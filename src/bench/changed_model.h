// A synthetic BF16 model at two versions, with everything that leads from one to the other.
#pragma once

#include <memory>
#include <vector>

#include "base/parallel.h"
#include "delta/decode.h"
#include "delta/encode.h"
#include "delta/grid_index.h"
#include "delta/replica.h"
#include "device/backends.h"
#include "format/inventory.h"

namespace deltawire::bench {

class ChangedModel {
 public:
  // Eight tensors, `elements` in all. One element in a hundred changes: nine of ten by one ordinal step, the
  // others by up to eight.
  ChangedModel(uint64_t elements, const Parallel& parallel);
  ChangedModel(const ChangedModel&) = delete;
  ChangedModel& operator=(const ChangedModel&) = delete;

  const device::Backends& backends() const { return backends_; }
  const format::Inventory& inventory() const { return inventory_; }
  const delta::GridIndex& grid() const { return grid_; }
  const format::UpdateHeader& header() const { return header_; }
  // The live tensors, at the old version.
  const std::vector<TensorView>& views() const { return views_; }
  const std::vector<delta::ChangedTensor>& changes() const { return changes_; }
  uint64_t changed() const { return changed_; }
  // The first element of a block, in the live tensor.
  uint16_t* BlockBits(uint32_t tensor, uint32_t block) const;

 private:
  delta::ChangedTensor Change(uint32_t tensor);

  device::Backends backends_ = device::HostBackends();
  format::Inventory inventory_;
  delta::GridIndex grid_;
  std::vector<TensorView> views_;
  std::vector<delta::ChangedTensor> changes_;
  format::UpdateHeader header_;
  uint64_t changed_ = 0;
};

}  // namespace deltawire::bench
