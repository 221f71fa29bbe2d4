// SIGINT and SIGTERM as a stop token: asked once, a command ends at its next safe point; asked twice, at
// once.
#pragma once

#include <csignal>
#include <stop_token>
#include <thread>

namespace deltawire::cli {

// Construct it before other threads start: they inherit the blocked signals, so that only this object's
// thread receives them.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  std::stop_token token() const { return stop_.get_token(); }

 private:
  sigset_t before_;
  std::stop_source stop_;
  std::jthread waiter_;
};

}  // namespace deltawire::cli
