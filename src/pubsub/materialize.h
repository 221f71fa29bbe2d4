// A checkpoint folder made from an anchor of a run: what a receiver that has no checkpoint starts from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "sync/catalog.h"

namespace deltawire::pubsub {

struct MaterializeOptions {
  std::optional<uint64_t> at_most;  // the newest anchor at or below this version; nullopt: the newest
  // Told (done, total) in bytes.
  std::function<void(uint64_t, uint64_t)> progress;
};

// Copies the anchor's files, each verified against its hash, into `folder` (missing, or empty) and returns
// the anchor's version. They are written to .NAME.deltawire-new beside it, synced, and renamed: `folder` is
// complete or not there. What a killed process left under that name is replaced; kExists while a living one
// works there, or when folder has files. kNotFound, with the remedy, when the run has no such anchor.
Result<uint64_t> MaterializeAnchor(sync::Catalog& catalog, const std::string& folder,
                                   const MaterializeOptions& options);

}  // namespace deltawire::pubsub
