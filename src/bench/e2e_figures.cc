#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "bench/figures.h"
#include "bench/floors.h"
#include "bench/memory_peak.h"
#include "bench/random_weights.h"
#include "bench/timing.h"
#include "bench/trainer.h"
#include "pubsub/subscriber.h"
#include "store/open.h"

namespace deltawire::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxMemoryFixed = uint64_t{64} << 20;
constexpr uint64_t kMaxMemoryPerChange = 16;

// A store's folder, gone when this goes.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& parent)
      : path_(fmt::format("{}/deltawire-bench-{}", parent, SystemRng().HexId(8))) {}
  ~ScratchFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The engine: BF16 tensors of its own, beginning as the trainer serves them.
std::vector<pubsub::TargetTensor> MakeEngine(const Trainer& trainer) {
  std::vector<pubsub::TargetTensor> targets;
  for (const auto& parameter : trainer.parameters()) {
    const uint64_t count = *ElementCount(parameter.theta.shape);
    const TensorView view = AllocateTensor(Dtype::kBf16, parameter.theta.shape);
    for (uint64_t at = 0; at < count; at += kMaxBlockElements) {
      kernels::CpuTable().copy({FloatsOf(parameter.theta).data(), at * 4}, kernels::Cast::kF32ToBf16,
                               static_cast<uint32_t>(std::min(kMaxBlockElements, count - at)),
                               {view.memory->handle(), view.offset_bytes + at * 2});
    }
    targets.push_back({parameter.name, view});
  }
  targets.push_back({"lm_head.weight", targets[0].view});
  return targets;
}

struct VersionTimes {
  double observe = 0;  // BeforeStep and AfterStep
  double publish = 0;
  double update = 0;
  pubsub::Version published;
  pubsub::Version applied;

  double total() const { return publish + update; }
};

struct Run {
  std::vector<VersionTimes> versions;
  // Peak bytes beyond model and optimizer, and beyond the engine's weights.
  std::optional<uint64_t> publisher_peak;
  std::optional<uint64_t> subscriber_peak;
  uint64_t publisher_held = 0;
  uint64_t subscriber_held = 0;
  uint64_t most_sent = 0;
};

// Runs `call` and raises `peak` to what it used at most: `held` before, and what the process grew by.
template <class F>
auto Metered(std::optional<uint64_t>& peak, uint64_t held, F&& call) {
  const auto meter = MemoryPeak::Begin();
  auto result = call();
  const auto grown = meter ? meter->GrowthBytes() : Result<uint64_t>(Fail(meter.error()));
  if (grown) peak = std::max(peak.value_or(0), held + *grown);
  return result;
}

Result<Run> PublishAndFollow(const Settings& settings, Trainer& trainer, int threads) {
  const ScratchFolder folder(settings.scratch);
  DELTAWIRE_ASSIGN(const auto store, OpenStore(folder.path(), true));
  Run run;
  pubsub::PublisherOptions publisher_options;
  publisher_options.store = store;
  publisher_options.cast_rule = "F32 served as BF16";
  publisher_options.parallel = Parallel(threads);
  DELTAWIRE_ASSIGN(auto publisher, Metered(run.publisher_peak, 0, [&] {
                     return pubsub::Publisher::Open(publisher_options, trainer.PublishedTensors());
                   }));
  pubsub::SubscriberOptions subscriber_options;
  subscriber_options.store = store;
  subscriber_options.parallel = Parallel(threads);
  const auto engine = MakeEngine(trainer);
  DELTAWIRE_ASSIGN(auto subscriber, pubsub::Subscriber::Open(subscriber_options, engine));
  DELTAWIRE_TRY(Metered(run.subscriber_peak, 0, [&] { return subscriber->Update(); }));

  const int versions = settings.quick ? 3 : 5;
  for (int i = 0; i < versions; ++i) {
    VersionTimes times;
    const auto observe = [&](const std::function<Status()>& call) {
      Status status;
      Metered(run.publisher_peak, publisher->memory_bytes(), [&] {
        times.observe += Time([&] { status = call(); }).wall;
        return 0;
      });
      return status;
    };
    std::vector<uint32_t> all(publisher->size());
    std::iota(all.begin(), all.end(), 0u);
    DELTAWIRE_TRY(observe([&] { return publisher->BeforeStep(all); }));
    trainer.Step();
    const auto steps = trainer.LastStep();
    DELTAWIRE_TRY(observe([&] { return publisher->AfterStep(steps); }));
    Result<pubsub::Version> published;
    const uint64_t publisher_held = publisher->memory_bytes();
    Metered(run.publisher_peak, publisher_held, [&] {
      times.publish = Time([&] { published = publisher->Publish(); }).wall;
      return 0;
    });
    DELTAWIRE_TRY(published);
    Result<pubsub::Version> applied;
    Metered(run.subscriber_peak, subscriber->memory_bytes(), [&] {
      times.update = Time([&] { applied = subscriber->Update(); }).wall;
      return 0;
    });
    DELTAWIRE_TRY(applied);
    if (applied->number != published->number || applied->digest != published->digest) {
      return Fail(Code::kInternal, "the engine is at version {} where {} was published", applied->number,
                  published->number);
    }
    run.publisher_held = std::max(run.publisher_held, publisher_held);
    run.subscriber_held = std::max(run.subscriber_held, subscriber->memory_bytes());
    run.most_sent = std::max(run.most_sent, published->sent);
    times.published = *std::move(published);
    times.applied = *std::move(applied);
    run.versions.push_back(std::move(times));
  }
  DELTAWIRE_TRY(subscriber->Verify());
  return run;
}

// Reading theta once, which any proof of the served bits needs; an fsynced write of the update's bytes; and
// the raw stores of the changes.
Result<double> FloorSeconds(const Settings& settings, const Trainer& trainer, const pubsub::Version& version,
                            int threads) {
  const Parallel parallel(threads);
  const uint64_t elements = trainer.elements();
  const auto weights = AllocateHost(elements * 4);
  std::fill_n(static_cast<float*>(weights->handle()), elements, 1.0f);
  const ReadFloor read({{static_cast<const uint8_t*>(weights->handle()), weights->size_bytes()}}, parallel);

  const uint64_t count = std::max<uint64_t>(version.sent, 1);
  std::vector<uint32_t> positions(count);
  for (uint64_t i = 0; i < count; ++i) positions[i] = static_cast<uint32_t>(i * elements / count);
  const std::vector<uint16_t> bits(count, 1);
  std::vector<ScatterFloor::Part> parts;
  const auto pieces = static_cast<uint64_t>(threads);
  for (uint64_t i = 0; i < pieces; ++i) {
    const uint64_t first = i * count / pieces;
    const uint64_t end = (i + 1) * count / pieces;
    parts.push_back({static_cast<uint16_t*>(weights->handle()),
                     {positions.data() + first, end - first},
                     bits.data() + first});
  }
  const ScatterFloor scatter(parts, parallel);

  const ScratchFolder folder(settings.scratch);
  DELTAWIRE_ASSIGN(const auto store, OpenStore(folder.path(), true));
  const Bytes file(version.bytes, 1);
  int number = 0;
  Status status;
  const auto times =
      BestOf(settings.rounds,
             {{[&] { read.Run(); }}, {[&] { scatter.Run(); }}, {[&] {
                if (auto put = store->Put(fmt::format("part-{}", number++), file, Condition::kIfAbsent); !put)
                  status = put;
              }}});
  DELTAWIRE_TRY(status);
  return times[0].wall + times[1].wall + times[2].wall;
}

void AddMemory(Report& report, const std::string& name, const std::optional<uint64_t>& peak, uint64_t held,
               uint64_t most_sent) {
  if (!peak) return report.AddMissing(name, "/proc/self/clear_refs is not offered here");
  constexpr double kMiB = 0x1p-20;
  report.Add({.name = name,
              .value = static_cast<double>(*peak) * kMiB,
              .unit = "MiB",
              .max_value = static_cast<double>(kMaxMemoryFixed + kMaxMemoryPerChange * most_sent) * kMiB,
              .note = fmt::format("must: 64 MiB + 16 B a changed element; {:.1f} MiB held between calls",
                                  static_cast<double>(held) * kMiB)});
}

}  // namespace

Status AddEndToEndFigures(const Settings& settings, Report& report) {
  Trainer trainer(settings.quick ? kTiny : kSmolLm135M, Parallel(settings.threads));
  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    DELTAWIRE_ASSIGN(Run run, PublishAndFollow(settings, trainer, threads));
    std::sort(run.versions.begin(), run.versions.end(),
              [](const VersionTimes& a, const VersionTimes& b) { return a.total() < b.total(); });
    const VersionTimes& median = run.versions[run.versions.size() / 2];
    DELTAWIRE_ASSIGN(const double floor, FloorSeconds(settings, trainer, median.published, threads));

    const auto& version = median.published;
    report.Add(
        {.name = "e2e.publish_to_applied" + suffix,
         .value = median.total() * 1e3,
         .unit = "ms",
         .floor = floor * 1e3,
         .note = fmt::format(
             "median of {} versions, best {:.1f}; {} elements, {} changed, {} uncertain, {} dense; "
             "{} B ({:.2f} B/sent); floor: read theta, write the update, raw scatter",
             run.versions.size(), run.versions.front().total() * 1e3, version.total, version.changed,
             version.uncertain, version.dense, version.bytes,
             static_cast<double>(version.bytes) / static_cast<double>(std::max<uint64_t>(version.sent, 1)))});
    double rest = median.total();
    const auto share = [&](const std::string& stage, double seconds) {
      report.Add({.name = fmt::format("e2e.share.{}{}", stage, suffix),
                  .value = seconds / median.total(),
                  .unit = "of publish_to_applied",
                  .note = fmt::format("{:.2f} ms", seconds * 1e3)});
    };
    for (const auto& [stage, seconds] : version.stages) {
      share("publish." + stage, seconds);
      rest -= seconds;
    }
    for (const auto& [stage, seconds] : median.applied.stages) {
      share("update." + stage, seconds);
      rest -= seconds;
    }
    share("rest", rest);
    report.Add({.name = "e2e.observe_step" + suffix,
                .value = median.observe * 1e3,
                .unit = "ms",
                .note = "fence before and inversion after each optimizer step, in the training loop"});
    AddMemory(report, "memory.publisher_peak" + suffix, run.publisher_peak, run.publisher_held,
              run.most_sent);
    AddMemory(report, "memory.subscriber_peak" + suffix, run.subscriber_peak, run.subscriber_held,
              run.most_sent);
    return {};
  });
}

}  // namespace deltawire::bench
