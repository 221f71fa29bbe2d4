// Several updates in a row as one: the last value of each element that any of them changed.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "delta/encode.h"
#include "delta/replica.h"

namespace deltawire::delta {

// Not thread-safe. The base's tensors are only read.
class Fold {
 public:
  // base: the state that the first update starts from, with nothing staged. inventory, grid and backends
  // outlive the fold.
  Fold(const device::Backends& backends, const format::Inventory& inventory, const GridIndex& grid,
       std::vector<ReplicaTensor> tensors, Replica base);

  // The next update; proved as a receiver would. kWrongBase when it does not start where the one before led.
  Status Add(const DecodedUpdate& update);

  // State digest of the base, and after the last update.
  const Digest& base_digest() const { return base_.digest(); }
  const Digest& digest() const { return base_.staged_digest(); }

  // kAbsolute: an update from the base and from each state on the way, which header.more_bases then names.
  // kStep and kClass: from the base only, without the elements that came back to it. The header's digests are
  // filled in; options.source is not used. kInvalidArgument beyond format::kMostMoreBases + 1 updates with
  // kAbsolute.
  Result<EncodedUpdate> Encode(format::UpdateHeader header, EncodeOptions options,
                               const Parallel& parallel) const;

 private:
  device::Block At(uint32_t tensor, uint32_t block) const;
  // Bits of a grid block after the last update.
  void ReadFolded(uint32_t tensor, uint32_t block, MutableByteSpan out) const;
  ChangedBlock Changed(uint32_t tensor, uint32_t block, const StagedBlock& staged, bool absolute) const;

  device::Backends backends_;
  const format::Inventory& inventory_;
  const GridIndex& grid_;
  std::vector<ReplicaTensor> tensors_;
  Replica base_;
  std::vector<Digest> between_;                    // states on the way, without the first and the last
  std::set<std::pair<uint32_t, uint32_t>> dense_;  // (tensor, block) that an update sent whole
};

}  // namespace deltawire::delta
