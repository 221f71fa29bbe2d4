// What one publish found, between detection and encoding. Private to the publisher's sources.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "delta/encode.h"
#include "format/manifest.h"
#include "pubsub/publisher.h"

namespace deltawire::pubsub {

struct Publisher::Collected {
  std::vector<delta::ChangedTensor> tensors;  // those with changed blocks
  format::ManifestCounts counts;
  Digest digest;       // of the whole state
  Digest base_digest;  // of the checkpoint that version 0 is compared with
  uint64_t steps = 0;  // optimizer steps in it
  std::vector<std::string> notes;

  // Counts a tensor and keeps it if it has changed blocks.
  void Add(delta::ChangedTensor tensor, const delta::GridIndex& grid) {
    for (const Box& box : grid.boxes(tensor.tensor)) counts.total += ElementCount(box);
    for (const delta::ChangedBlock& block : tensor.blocks) {
      counts.changed += block.change.changed.size();
      counts.uncertain += block.change.uncertain.size();
      if (block.change.dense) counts.dense += ElementCount(grid.boxes(tensor.tensor)[block.block]);
    }
    counts.sent = counts.changed + counts.uncertain + counts.dense;
    if (!tensor.blocks.empty()) tensors.push_back(std::move(tensor));
  }
};

}  // namespace deltawire::pubsub
