// Keeping a receiver at the newest version until told to stop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>

#include "base/status.h"
#include "pubsub/subscriber.h"

namespace deltawire::pubsub {

struct FollowOptions {
  std::optional<uint64_t> number;     // go to this version and return, instead of following
  bool once = false;                  // go to the newest and return
  std::optional<int64_t> timeout_ms;  // return when no newer version came for so long; nullopt: wait for ever
  int64_t poll_ms = 1'000;
  uint64_t verify_every = 0;                      // re-read every bit after each Nth commit; 0: never
  std::function<void(const Version&)> committed;  // after each commit
  std::function<void(const Version&)> current;    // the receiver was there already when this began
  // Told about an update that was refused; the receiver still holds what it held, and the next version is
  // tried.
  std::function<void(uint64_t number, const Error&)> refused;
  std::function<void(const Version&)> verified;
};

// Commits each newer version as it appears. Stops only between commits: within poll_ms of `cancel`, on which
// it returns success. While it follows, faults of one update (kCorrupt, kWrongBase, kDetectorFault,
// kNotFound) and of the store (kIo) go to `refused` and it goes on; everything else, and with `number` or
// `once` any error, ends it. Returns the version in the end; nullopt when none was reached before timeout or
// cancel.
Result<std::optional<Version>> Follow(Subscriber& subscriber, const FollowOptions& options,
                                      const std::stop_token& cancel = {});

}  // namespace deltawire::pubsub
