// One synthetic tensor for figures of detection, in blocks of the default grid.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/random_weights.h"
#include "bench/settings.h"
#include "detect/tensor_watch.h"
#include "device/block.h"

namespace deltawire::bench {

struct DetectTensor {
  Shape shape;
  std::vector<Box> boxes;
  device::Backends backends = device::HostBackends();
  uint64_t key = DigestKey("bench");

  explicit DetectTensor(const Settings& settings)
      : shape{settings.elements / 1024, 1024}, boxes(*GridBlocks(shape, DefaultGrid(shape))) {}

  TensorView Allocate(Dtype dtype) const { return AllocateTensor(dtype, shape); }
  device::Block At(const TensorView& view, size_t block, kernels::Cast cast) const {
    return {backends, view, boxes[block], cast, key};
  }
  // Null if the method does not apply to it.
  std::unique_ptr<detect::TensorWatch> Watch(const TensorView& live, detect::Method method,
                                             uint64_t start_step) const {
    auto watch =
        detect::TensorWatch::Create(backends, {"bench", live, Dtype::kBf16, boxes}, method, "", start_step);
    return watch ? *std::move(watch) : nullptr;
  }
};

inline std::string Rate(uint64_t bytes, double seconds) {
  return fmt::format("{:.1f} GB/s", static_cast<double>(bytes) * 1e-9 / seconds);
}

}  // namespace deltawire::bench
