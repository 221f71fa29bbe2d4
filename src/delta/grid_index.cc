#include "delta/grid_index.h"

#include <algorithm>

namespace deltawire::delta {

GridIndex::GridIndex(const format::Inventory& inventory) {
  boxes_.reserve(inventory.tensors.size());
  for (const auto& tensor : inventory.tensors) {
    const auto index = static_cast<uint32_t>(boxes_.size());
    boxes_.push_back(*GridBlocks(tensor.shape, tensor.grid));
    for (uint32_t block = 0; block < boxes_.back().size(); ++block) places_.push_back({index, block});
  }
}

std::optional<uint32_t> GridIndex::Find(uint32_t tensor, const Box& box) const {
  const auto& boxes = boxes_[tensor];
  const auto found = std::find(boxes.begin(), boxes.end(), box);
  if (found == boxes.end()) return std::nullopt;
  return static_cast<uint32_t>(found - boxes.begin());
}

}  // namespace deltawire::delta
