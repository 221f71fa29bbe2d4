// Which version of a run a checkpoint on disk is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "device/backends.h"
#include "sync/catalog.h"
#include "tensor/digest.h"

namespace deltawire::pubsub {

struct Identity {
  std::string run;
  Digest digest;                       // of the tensors that the run serves
  std::vector<uint64_t> versions;      // with exactly these bits, ascending; usually one
  uint64_t newest = 0;                 // version of the run
  std::vector<std::string> unmanaged;  // the checkpoint's tensors that the run does not serve, sorted
  // Where no version has these bits: the version from which the fewest tensors differ, and which those are
  // (empty when no version stores the digests of its tensors).
  std::optional<uint64_t> nearest;
  std::vector<std::string> differing;
};

// Reads every bit of the checkpoint once. kMismatch when it lacks a tensor of the run, or has another shape
// or dtype, or two copies of a tied weight differ.
Result<Identity> IdentifyCheckpoint(const std::string& path, sync::Catalog& catalog,
                                    const device::Backends& backends, const Parallel& parallel);

}  // namespace deltawire::pubsub
