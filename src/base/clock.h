// Time and sleeping, passed in so that tests decide what time it is.
#pragma once

#include <chrono>
#include <cstdint>

namespace deltawire {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since the Unix epoch; stamps in manifests.
  virtual int64_t UnixNanos() = 0;
  // Monotonic nanoseconds; durations only.
  virtual int64_t MonotonicNanos() = 0;
  virtual void SleepMillis(int64_t ms) = 0;
};

// The machine's clocks. Stateless and safe to share between threads.
Clock& SystemClock();

// Seconds since construction.
class Stopwatch {
 public:
  explicit Stopwatch(Clock& clock) : clock_(&clock), start_(clock.MonotonicNanos()) {}
  double Seconds() const { return static_cast<double>(clock_->MonotonicNanos() - start_) * 1e-9; }

 private:
  Clock* clock_;
  int64_t start_;
};

}  // namespace deltawire
