#include "bench/timing.h"

#include <algorithm>
#include <ctime>
#include <limits>

namespace deltawire::bench {
namespace {

double Now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Elapsed Time(const std::function<void()>& run) {
  const double wall = Now(CLOCK_MONOTONIC);
  const double cpu = Now(CLOCK_THREAD_CPUTIME_ID);
  run();
  return {.wall = Now(CLOCK_MONOTONIC) - wall, .cpu = Now(CLOCK_THREAD_CPUTIME_ID) - cpu};
}

std::vector<Elapsed> BestOf(int rounds, const std::vector<Contender>& contenders) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<Elapsed> best(contenders.size(), {kNever, kNever});
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      contenders[i].reset();
      const Elapsed taken = Time(contenders[i].run);
      if (round < 0) continue;
      best[i] = {std::min(best[i].wall, taken.wall), std::min(best[i].cpu, taken.cpu)};
    }
  }
  return best;
}

}  // namespace deltawire::bench
