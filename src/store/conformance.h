// The conformance suite of stores: what every implementation must do, run on each of them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "store/store.h"

namespace deltawire {

struct StoreDescription {
  std::string name;  // of the test suite, e.g. "FileStore"
  // A new, empty store each time. What it needs (folder, inner store) lives as long as the pointer. Which
  // cases run follows from capabilities().
  std::function<std::shared_ptr<Store>()> make_empty;
};

// Registers one GoogleTest case for each requirement. Call it before RUN_ALL_TESTS, from a namespace-scope
// initialiser of a test program: `const bool kRegistered = RegisterStoreConformance({...});`. Returns true.
bool RegisterStoreConformance(const StoreDescription& description);

}  // namespace deltawire
