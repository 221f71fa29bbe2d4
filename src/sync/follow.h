// Waiting for the next version.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>

#include "base/clock.h"
#include "base/status.h"
#include "sync/catalog.h"

namespace deltawire::sync {

struct WaitOptions {
  int64_t timeout_ms = 60'000;  // 0: look once
  int64_t poll_ms = 1'000;      // between two looks; at least 1
};

// The newest version above `than` (nullopt: any version), as soon as there is one; nullopt after timeout_ms.
// Errors that may pass (kIo; kNotFound for a run that has not begun) don't end the wait; if the last look
// failed with kIo, so does the wait. kCancelled within 100 ms of `cancel`. Looks at least once, also when
// cancelled.
Result<std::optional<uint64_t>> WaitForNewer(Catalog& catalog, std::optional<uint64_t> than,
                                             const WaitOptions& options, Clock& clock,
                                             const std::stop_token& cancel = {});

}  // namespace deltawire::sync
