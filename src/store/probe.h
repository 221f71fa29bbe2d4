// Trying out what a store says it can do.
#pragma once

#include <string>
#include <vector>

#include "base/rng.h"
#include "store/store.h"

namespace deltawire {

struct ProbeStep {
  std::string what;  // "create", "create again", "read", "list", "delete"
  Status result;     // success: the store behaved as its capabilities say
};

// Writes a small object under a random name at the root of the store, tries each operation that publishing
// needs, and deletes it again. Stops at the first step that fails.
std::vector<ProbeStep> ProbeStore(Store& store, Rng& rng);

}  // namespace deltawire
