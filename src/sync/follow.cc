#include "sync/follow.h"

#include <algorithm>

namespace deltawire::sync {
namespace {

// A cancelled wait ends within one of these.
constexpr int64_t kSlice = 100;

}  // namespace

Result<std::optional<uint64_t>> WaitForNewer(Catalog& catalog, std::optional<uint64_t> than,
                                             const WaitOptions& options, Clock& clock,
                                             const std::stop_token& cancel) {
  if (options.timeout_ms < 0 || options.poll_ms < 1)
    return Fail(Code::kInvalidArgument,
                "waiting for a version with timeout_ms {} and poll_ms {}; expected >= 0 and >= 1",
                options.timeout_ms, options.poll_ms);
  const auto start = clock.MonotonicNanos();
  const auto left_ms = [&] { return options.timeout_ms - (clock.MonotonicNanos() - start) / 1'000'000; };
  for (;;) {
    const auto newest = catalog.NewestFrom(than);
    if (newest && (!than || *newest > *than)) return *newest;
    if (!newest && newest.error().code() != Code::kIo && newest.error().code() != Code::kNotFound)
      return Fail(newest.error());
    if (left_ms() <= 0) {
      if (!newest && newest.error().code() == Code::kIo)
        return Fail(newest.error().Within(fmt::format("waited {} ms for a version", options.timeout_ms)));
      return std::nullopt;
    }
    const auto next_look = clock.MonotonicNanos() + std::min(options.poll_ms, left_ms()) * 1'000'000;
    do {
      if (cancel.stop_requested()) return Fail(Code::kCancelled, "waiting for a version was cancelled");
      const auto rest_ms = (next_look - clock.MonotonicNanos() + 999'999) / 1'000'000;
      if (rest_ms <= 0) break;
      clock.SleepMillis(std::min(kSlice, rest_ms));
    } while (true);
  }
}

}  // namespace deltawire::sync
