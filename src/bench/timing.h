// Best-of-N timing of things that are compared with each other.
#pragma once

#include <functional>
#include <vector>

namespace deltawire::bench {

// Seconds. cpu: of the calling thread alone.
struct Elapsed {
  double wall = 0;
  double cpu = 0;

  // What is reported: with one thread its own processor time, which waiting for a busy machine does not
  // lengthen; with more, the wall clock.
  double Of(int threads) const { return threads == 1 ? cpu : wall; }
};

Elapsed Time(const std::function<void()>& run);

struct Contender {
  std::function<void()> run;
  std::function<void()> reset = [] {};  // before each run, not timed
};

// Runs all contenders once for warmth, then takes turns for `rounds` rounds, so that a disturbance meets
// each of them alike. The least wall and cpu time of each.
std::vector<Elapsed> BestOf(int rounds, const std::vector<Contender>& contenders);

}  // namespace deltawire::bench
