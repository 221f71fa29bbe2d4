// Checks everything that a run has in its store, as a receiver of every version would.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "sync/catalog.h"

namespace deltawire::pubsub {

struct RunCheck {
  struct Fault {
    std::string object;  // name in the store
    Error error;         // what was found, what was expected, what to do
  };
  std::string run;
  uint64_t versions = 0;  // manifests whose own hash, run and number hold
  uint64_t links = 0;     // bases and aliases that are the version they claim to be
  uint64_t parts = 0;     // update files: size, SHA-256, content hash, table, every stream, header
  // Parts whose coding this build does not know, beside others of their version that it has checked: size and
  // SHA-256 only.
  uint64_t unread_parts = 0;
  uint64_t inventories = 0;
  uint64_t digest_tables = 0;  // whose sum is the state digest
  uint64_t anchors = 0;
  uint64_t anchor_files = 0;  // size and SHA-256
  uint64_t bytes = 0;         // read from parts and anchor files
  std::vector<Fault> faults;  // in the order of versions, then of anchors
};

struct VerifyRunOptions {
  Parallel parallel;
  // Told (done, total) in versions and anchors.
  std::function<void(uint64_t, uint64_t)> progress;
};

// Faults of the stored objects go to RunCheck::faults and end nothing but the object's own checks; an error
// means that the check itself could not go on (kNotFound: there is no run; kIo). Heap: one part at a time.
Result<RunCheck> VerifyRun(sync::Catalog& catalog, const VerifyRunOptions& options);

}  // namespace deltawire::pubsub
