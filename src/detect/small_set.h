// Set Z of a block (docs/numerics.md): the few elements whose served BF16 is -0 or next to zero. Inversion
// can't see some of their events, so their bits are kept and compared.
#pragma once

#include <cstdint>
#include <vector>

#include "detect/change_log.h"
#include "device/block.h"

namespace deltawire::detect {

class SmallSet {
 public:
  // Reads the block and replaces the set.
  void Rebuild(const device::Block& block);

  // After a step: `step` lists what inversion flagged. Members whose bits changed are added to it with their
  // exact base, members that did not change are removed from it; then the set is brought up to date from the
  // members and the flagged elements, which are all that can have moved.
  ChangeLog Reconcile(const device::Block& block, const ChangeLog& step);

  size_t size() const { return positions_.size(); }

 private:
  std::vector<uint32_t> positions_;
  std::vector<uint16_t> bits_;
};

}  // namespace deltawire::detect
