#include "cli/stop_signals.h"

#include <ctime>

namespace deltawire::cli {

StopSignals::StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
  waiter_ = std::jthread([this, signals](const std::stop_token& ended) {
    // Nothing can interrupt a wait for signals but its end, so it is cut into short ones.
    constexpr timespec kSlice = {.tv_sec = 0, .tv_nsec = 50'000'000};
    while (!ended.stop_requested()) {
      if (sigtimedwait(&signals, nullptr, &kSlice) < 0) continue;
      stop_.request_stop();
      pthread_sigmask(SIG_UNBLOCK, &signals,
                      nullptr);  // the next one finds this thread, and the default action
      return;
    }
  });
}

StopSignals::~StopSignals() {
  waiter_ = {};
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace deltawire::cli
