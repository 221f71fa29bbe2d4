// The blocks of every tensor of an inventory, expanded once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "format/inventory.h"
#include "tensor/shape.h"

namespace deltawire::delta {

class GridIndex {
 public:
  // inventory satisfies CheckInventory.
  explicit GridIndex(const format::Inventory& inventory);

  const std::vector<Box>& boxes(uint32_t tensor) const { return boxes_[tensor]; }
  uint32_t tensors() const { return static_cast<uint32_t>(boxes_.size()); }
  // The index of a box in its tensor's grid; nullopt for a box that is not one of its blocks.
  std::optional<uint32_t> Find(uint32_t tensor, const Box& box) const;

  // Every block of every tensor, in order: what parallel passes iterate over.
  struct Place {
    uint32_t tensor;
    uint32_t block;
  };
  const std::vector<Place>& places() const { return places_; }

 private:
  std::vector<std::vector<Box>> boxes_;
  std::vector<Place> places_;
};

}  // namespace deltawire::delta
