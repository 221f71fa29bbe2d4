#include "pubsub/follow.h"

#include <algorithm>
#include <utility>

namespace deltawire::pubsub {
namespace {

// Long waits are cut, so that "for ever" needs no number of its own.
constexpr int64_t kLongestWaitMs = 3'600'000;

// Errors that a later version, or a later try, may not have.
bool LaterTryMayHelp(Code code) { return code == Code::kNotFound || code == Code::kIo; }
bool LaterVersionMayHelp(Code code) {
  return code == Code::kCorrupt || code == Code::kWrongBase || code == Code::kDetectorFault;
}

class Follower {
 public:
  Follower(Subscriber& subscriber, const FollowOptions& options)
      : subscriber_(subscriber), options_(options) {}

  Status UpdateTo(std::optional<uint64_t> number) {
    DELTAWIRE_ASSIGN(const Version staged, subscriber_.Stage(number));
    // Only now: a new subscriber learns while it stages which version it holds.
    const auto before = subscriber_.version();
    const bool moved = !before || before->number != staged.number;
    DELTAWIRE_ASSIGN(Version version, subscriber_.Commit());
    version.seconds = 0;
    for (const auto& [stage, seconds] : version.stages) version.seconds += seconds;
    const bool first = !last_;
    last_ = version;
    if (moved && options_.committed) options_.committed(version);
    if (!moved && first && options_.current) options_.current(version);
    if (!moved || options_.verify_every == 0 || ++commits_ % options_.verify_every != 0) return {};
    DELTAWIRE_TRY(subscriber_.Verify());
    if (options_.verified) options_.verified(version);
    return {};
  }

  Result<std::optional<Version>> Run(const std::stop_token& cancel) {
    std::optional<uint64_t> seen;  // the newest version that is committed, or refused for good
    int64_t waited_ms = 0;         // since the last commit
    while (!cancel.stop_requested()) {
      const int64_t left_ms = options_.timeout_ms.value_or(kLongestWaitMs) - waited_ms;
      if (options_.timeout_ms && left_ms < 0) break;
      const auto newer =
          subscriber_.NewerVersion(seen, {std::max<int64_t>(0, left_ms), options_.poll_ms}, cancel);
      if (!newer && newer.error().code() == Code::kCancelled) break;
      if (!newer && (newer.error().code() != Code::kIo || options_.timeout_ms)) return Fail(newer.error());
      if (!newer || !*newer) {
        if (options_.timeout_ms) break;
        continue;
      }
      const Status updated = UpdateTo(std::nullopt);
      if (updated) {
        seen = last_->number;
        waited_ms = 0;
        continue;
      }
      const Code code = updated.error().code();
      if (!LaterTryMayHelp(code) && !LaterVersionMayHelp(code)) return Fail(updated.error());
      Refuse(**newer, updated.error());
      if (LaterVersionMayHelp(code)) seen = *newer;
      // A version that is not all there yet, or a store that fails, is tried again at the pace of polling.
      const auto waited = subscriber_.NewerVersion(*newer, {options_.poll_ms, options_.poll_ms}, cancel);
      if (!waited && waited.error().code() == Code::kCancelled) break;
      waited_ms += options_.poll_ms;
    }
    return last_;
  }

  const std::optional<Version>& last() const { return last_; }

 private:
  // The same refusal is told once, however often it is met.
  void Refuse(uint64_t number, const Error& error) {
    if (refused_ && refused_->first == number && refused_->second == error) return;
    refused_.emplace(number, error);
    if (options_.refused) options_.refused(number, error);
  }

  Subscriber& subscriber_;
  const FollowOptions& options_;
  std::optional<std::pair<uint64_t, Error>> refused_;
  std::optional<Version> last_;
  uint64_t commits_ = 0;
};

}  // namespace

Result<std::optional<Version>> Follow(Subscriber& subscriber, const FollowOptions& options,
                                      const std::stop_token& cancel) {
  Follower follower(subscriber, options);
  if (!options.once && !options.number) return follower.Run(cancel);
  if (options.timeout_ms) {
    // Once the version that is asked for, or any, is there.
    const std::optional<uint64_t> than =
        options.number && *options.number > 0 ? std::optional(*options.number - 1) : std::nullopt;
    DELTAWIRE_TRY(subscriber.NewerVersion(than, {*options.timeout_ms, options.poll_ms}, cancel));
  }
  DELTAWIRE_TRY(follower.UpdateTo(options.number));
  return follower.last();
}

}  // namespace deltawire::pubsub
