// A synthetic BF16 model before and after one optimizer step: normal weights of deviations 0.01 to 0.05 and
// norms near 1, each moved by lr times a normal number, then rounded. Small weights change often and large
// ones rarely, which is what class coding lives on.
#pragma once

#include <vector>

#include "base/parallel.h"
#include "delta/encode.h"
#include "delta/grid_index.h"
#include "delta/replica.h"
#include "device/backends.h"
#include "format/inventory.h"

namespace deltawire::bench {

// The learning rates at which figures are taken, by the share of elements that they change.
struct WireDensity {
  const char* name;
  float lr;
};
inline constexpr WireDensity kDense{"dense", 4.1e-7f};    // 1.5 %
inline constexpr WireDensity kMid{"mid", 1.75e-7f};       // 0.7 %
inline constexpr WireDensity kSparse{"sparse", 3.8e-8f};  // below 0.2 %

class WireModel {
 public:
  // Sixteen matrices, `elements` (a multiple of 2^20) in all, and as many norms of 1024.
  WireModel(uint64_t elements, float lr, const Parallel& parallel);
  WireModel(const WireModel&) = delete;
  WireModel& operator=(const WireModel&) = delete;

  const device::Backends& backends() const { return backends_; }
  const format::Inventory& inventory() const { return inventory_; }
  const delta::GridIndex& grid() const { return grid_; }
  const format::UpdateHeader& header() const { return header_; }
  const std::vector<delta::ChangedTensor>& changes() const { return changes_; }
  uint64_t changed() const { return changed_; }
  uint64_t elements() const { return elements_; }

  // The tensors at the old version: what a receiver holds.
  const std::vector<TensorView>& old_views() const { return old_; }
  // The new version's bits, where they stand.
  delta::ClassSource source() const;

 private:
  void Fill(uint32_t tensor, float lr);
  device::Block At(const std::vector<TensorView>& views, uint32_t tensor, uint32_t block) const;

  device::Backends backends_ = device::HostBackends();
  format::Inventory inventory_;
  delta::GridIndex grid_;
  std::vector<TensorView> old_;
  std::vector<TensorView> new_;
  std::vector<delta::ChangedTensor> changes_;
  format::UpdateHeader header_;
  uint64_t changed_ = 0;
  uint64_t elements_ = 0;
};

}  // namespace deltawire::bench
