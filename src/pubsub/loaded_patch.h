// A standalone patch from disk, checked: what apply, verify and convert begin with.
#pragma once

#include <memory>
#include <string>

#include "base/parallel.h"
#include "base/status.h"
#include "delta/decode.h"
#include "format/inventory.h"
#include "tensor/memory.h"

namespace deltawire::pubsub {

struct LoadedPatch {
  std::shared_ptr<Memory> file;  // mapped; `update` points into it
  format::Inventory inventory;
  std::unique_ptr<delta::GridIndex> grid;
  delta::DecodedUpdate update;  // its header has a base_digest
};

// Every hash and stream is checked; errors name the path.
Result<LoadedPatch> LoadPatch(const std::string& path, const Parallel& parallel);

}  // namespace deltawire::pubsub
