// The whole program: batches over threads, sums, and how far a run has come.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>

#include "base/clock.h"
#include "base/parallel.h"
#include "base/status.h"
#include "stress/plan.h"
#include "stress/subject.h"
#include "stress/tally.h"

namespace deltawire::stress {

// A run so far: batches [first_batch, next_batch) of this seed. Independent of threads and of interruptions,
// `seconds` aside.
struct Progress {
  uint64_t seed = 0;
  uint64_t first_batch = 0;
  uint64_t next_batch = 0;
  double seconds = 0;  // of running, over all starts
  Totals totals;
};

struct RunOptions {
  uint64_t end_batch = 0;  // exclusive
  Parallel parallel;
  // Now and then and at the end, from the calling thread; an error ends the run.
  std::function<Status(const Progress&)> checkpoint;
  std::stop_token stop;
};

// How many batches make at least `elements` element-steps.
uint64_t BatchesFor(uint64_t elements);

// Goes on from `progress`. kUnsupported without AVX2 and FMA; kCancelled when stopped, after a checkpoint.
Status Run(const RunOptions& options, const Subject& subject, Clock& clock, Progress& progress);

}  // namespace deltawire::stress
