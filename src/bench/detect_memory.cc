// What detection holds beyond the trainer's own tensors, after K steps without a publish.
#include <algorithm>
#include <numeric>

#include "bench/figures.h"
#include "bench/memory_peak.h"
#include "bench/trainer.h"
#include "detect/model_watch.h"

namespace deltawire::bench {
namespace {

constexpr double kMib = 1 << 20;
// Bytes a parameter for what is kept for each block of up to 2^21, and for the resident set's own noise.
constexpr double kBookkeeping = 0.01;

struct Held {
  double per_parameter = 0;  // bytes resident after the steps, beyond those before the watch
  double of_changes = 0;     // of that, 8 bytes an element that will be sent
  double of_scratch = 0;     // of that, what capture keeps for the largest parameter
  double transient_mib = 0;  // peak of the resident set in a step's calls, beyond what stays
  double sent_share = 0;
};

Result<std::unique_ptr<detect::ModelWatch>> WatchAll(const Trainer& trainer, detect::Method method,
                                                     const Parallel& parallel) {
  std::vector<detect::WatchSpec> specs;
  for (const pubsub::PublishedTensor& tensor : trainer.PublishedTensors()) {
    specs.push_back({{tensor.name, tensor.live, tensor.served,
                      *GridBlocks(tensor.live.shape, DefaultGrid(tensor.live.shape))},
                     method,
                     tensor.reason,
                     tensor.start_step});
  }
  return detect::ModelWatch::Create(device::HostBackends(), parallel, std::move(specs));
}

Status ObserveStep(detect::ModelWatch& watch, Trainer& trainer, detect::Method method) {
  const auto count = static_cast<uint32_t>(trainer.parameters().size());
  if (method != detect::Method::kCapture) {
    std::vector<uint32_t> all(count);
    std::iota(all.begin(), all.end(), 0u);
    DELTAWIRE_TRY(watch.BeforeStep(all));
    trainer.Step();
    return method == detect::Method::kInversion ? watch.AfterStep(trainer.LastStep()) : Status{};
  }
  trainer.BeginStep();
  for (uint32_t p = 0; p < count; ++p) {
    DELTAWIRE_TRY(watch.BeginCapture({&p, 1}));
    trainer.StepParameter(p);
    DELTAWIRE_TRY(watch.EndCapture({&p, 1}));
  }
  return {};
}

Result<Held> Measure(const ModelShape& shape, detect::Method method, int steps) {
  const Parallel parallel(1);
  Trainer trainer(shape, parallel);
  trainer.Step();
  DELTAWIRE_ASSIGN(const MemoryPeak before, MemoryPeak::Begin());
  DELTAWIRE_ASSIGN(const auto watch, WatchAll(trainer, method, parallel));
  const auto elements = static_cast<double>(trainer.elements());
  Held held;
  uint64_t resident = before.resident_bytes();
  for (int i = 0; i < steps; ++i) {
    DELTAWIRE_ASSIGN(const MemoryPeak during, MemoryPeak::Begin());
    DELTAWIRE_TRY(ObserveStep(*watch, trainer, method));
    DELTAWIRE_ASSIGN(const uint64_t growth, during.GrowthBytes());
    DELTAWIRE_ASSIGN(const MemoryPeak after, MemoryPeak::Begin());
    const uint64_t top = during.resident_bytes() + growth;
    resident = after.resident_bytes();
    if (top > resident)
      held.transient_mib = std::max(held.transient_mib, static_cast<double>(top - resident) / kMib);
  }
  held.per_parameter =
      (static_cast<double>(resident) - static_cast<double>(before.resident_bytes())) / elements;
  if (method == detect::Method::kCapture) {
    uint64_t largest = 0;
    for (uint32_t t = 0; t < watch->size(); ++t) largest = std::max(largest, (*watch)[t].served_bytes());
    held.of_scratch = static_cast<double>(largest) / elements;
  }
  detect::ModelWatch::Changes changes;
  DELTAWIRE_TRY(watch->Collect(changes));
  uint64_t sent = 0;
  for (const auto& tensor : changes) {
    for (const BlockChange& change : tensor) sent += change.changed.size() + change.uncertain.size();
  }
  held.sent_share = static_cast<double>(sent) / elements;
  held.of_changes = 8 * held.sent_share;
  return held;
}

}  // namespace

Status AddDetectMemoryFigures(const Settings& settings, Report& report) {
  const ModelShape& shape = settings.quick ? kTiny : kSmolLm135M;
  for (const auto method :
       {detect::Method::kInversion, detect::Method::kCapture, detect::Method::kSnapshot}) {
    for (const int steps : {1, 8}) {
      const auto held = Measure(shape, method, steps);
      const std::string name = fmt::format("memory.{}.k{}", detect::MethodName(method), steps);
      if (!held && held.error().code() == Code::kUnsupported) {
        report.AddMissing(name, std::string(held.error().message()));
        continue;
      }
      if (!held) return Fail(held.error());
      const bool logs = detect::LogsChanges(method);
      report.Add(
          {.name = name + ".held",
           .value = held->per_parameter,
           .unit = "B/parameter",
           .floor = std::nullopt,
           .max_ratio = std::nullopt,
           .max_value =
               logs ? std::optional((steps > 1 ? 0.125 : kBookkeeping) + held->of_changes + held->of_scratch)
                    : std::nullopt,
           .note = logs ? fmt::format("of it {:.3f} are 8 B for each of the {:.2f} % sent, {:.3f} scratch",
                                      held->of_changes, 100 * held->sent_share, held->of_scratch)
                        : std::string("the served bits")});
      report.Add({.name = name + ".transient",
                  .value = held->transient_mib,
                  .unit = "MiB",
                  .floor = std::nullopt,
                  .max_ratio = std::nullopt,
                  .max_value = 64,
                  .note = "peak resident size in a step's calls, beyond what stays"});
    }
  }
  return {};
}

}  // namespace deltawire::bench
