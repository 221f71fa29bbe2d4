#include "base/clock.h"

#include <thread>

namespace deltawire {
namespace {

class MachineClock final : public Clock {
 public:
  int64_t UnixNanos() override {
    return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  int64_t MonotonicNanos() override {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void SleepMillis(int64_t ms) override { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
};

}  // namespace

Clock& SystemClock() {
  static MachineClock clock;  // stateless: not a hidden dependency, only a shared instance
  return clock;
}

}  // namespace deltawire
