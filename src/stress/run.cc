#include "stress/run.h"

#include <algorithm>
#include <vector>

#include "stress/run_batch.h"
#include "stress/step_orders.h"

namespace deltawire::stress {
namespace {

// Between two checkpoints: a second or so.
constexpr uint64_t kChunk = 256;

void Add(uint64_t seed, uint64_t number, BatchResult& result, Totals& totals) {
  totals.all += result.tally;
  for (const auto& [dimension, value] : LabelsOf(MakePlan(seed, number))) {
    auto found = totals.by.find(dimension);
    if (found == totals.by.end()) found = totals.by.try_emplace(std::string(dimension)).first;
    found->second[value] += result.tally;
  }
  if (!totals.first_failure && result.failure) totals.first_failure = std::move(result.failure);
}

}  // namespace

bool ProcessorRunsOrders() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
#else
  return false;
#endif
}

uint64_t BatchesFor(uint64_t elements) {
  return elements / kBatchElements + (elements % kBatchElements != 0);
}

Status Run(const RunOptions& options, const Subject& subject, Clock& clock, Progress& progress) {
  if (!ProcessorRunsOrders()) {
    return Fail(Code::kUnsupported,
                "this processor has no AVX2 and FMA, for which the optimizers' kernels are compiled; run the "
                "stress program on an x86-64 machine of 2013 or later");
  }
  while (progress.next_batch < options.end_batch) {
    if (options.stop.stop_requested()) {
      if (options.checkpoint) DELTAWIRE_TRY(options.checkpoint(progress));
      return Fail(Code::kCancelled, "stopped after {} element-steps", progress.totals.all.elements);
    }
    const Stopwatch watch(clock);
    const uint64_t first = progress.next_batch;
    const uint64_t count = std::min(kChunk, options.end_batch - first);
    std::vector<Result<BatchResult>> results(count, BatchResult{});
    options.parallel.For(
        count, [&](uint64_t i) { results[i] = RunBatch(MakePlan(progress.seed, first + i), subject); });
    for (uint64_t i = 0; i < count; ++i) {
      if (!results[i]) return Fail(results[i].error().Within(fmt::format("batch {}", first + i)));
      Add(progress.seed, first + i, *results[i], progress.totals);
    }
    progress.next_batch += count;
    progress.seconds += watch.Seconds();
    if (options.checkpoint) DELTAWIRE_TRY(options.checkpoint(progress));
  }
  return {};
}

}  // namespace deltawire::stress
