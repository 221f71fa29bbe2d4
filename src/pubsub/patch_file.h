// Patches between two checkpoints on disk, without a store: the work behind `deltawire diff` and `apply`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/parallel.h"
#include "codec/codec.h"
#include "device/backends.h"
#include "pubsub/version.h"

namespace deltawire::pubsub {

struct PatchOptions {
  codec::Coding coding = codec::Coding::kStep;
  device::Backends backends = device::HostBackends();
  Parallel parallel{};
  Clock* clock = &SystemClock();
  // Told (done, total) in blocks; from one thread at a time.
  std::function<void(uint64_t, uint64_t)> progress;
};

// Writes to `out` (atomically: a temporary file, renamed over what is there; never over or into an input) the
// update that turns checkpoint `old_path` into `new_path`. Both are mapped; heap is O(changes). kMismatch
// naming tensors when names, shapes or dtypes differ.
Result<Version> DiffCheckpoints(const std::string& old_path, const std::string& new_path,
                                const std::string& out, const PatchOptions& options);

// Writes to `out` (a file or folder like `base_path`, which must not exist) the checkpoint that the patch
// makes of `base_path`. Nothing appears under `out` unless the result is proved. kWrongBase when the base is
// another one.
Result<Version> ApplyPatch(const std::string& base_path, const std::string& patch, const std::string& out,
                           const PatchOptions& options);

// Writes to `out` (as DiffCheckpoints does) one patch that does what `patches`, each made from the result of
// the one before, do to `base_path` in turn. kAbsolute: it also applies to each result on the way, and where
// a patch sent a whole block it does, too. kWrongBase naming the patch that does not fit. Memory: the
// changes.
Result<Version> FoldPatches(const std::string& base_path, const std::vector<std::string>& patches,
                            const std::string& out, const PatchOptions& options);

// Checks every hash and stream of a standalone patch. Returns what it says of itself.
Result<Version> VerifyPatch(const std::string& patch, const PatchOptions& options);

// State digest of a checkpoint's tensors under an inventory of exactly those.
Result<Digest> DigestCheckpoint(const std::string& path, const PatchOptions& options);

}  // namespace deltawire::pubsub
