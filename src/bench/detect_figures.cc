#include <cstring>

#include "bench/figures.h"
#include "bench/floors.h"
#include "bench/random_weights.h"
#include "bench/timing.h"
#include "detect/tensor_watch.h"
#include "device/block.h"
#include "kernels/adamw_band.h"

namespace deltawire::bench {
namespace {

constexpr double kGradient = 1e-4;
constexpr double kLearningRate = 2e-6;  // with these moments about one BF16 weight in a hundred changes
constexpr uint64_t kStep = 1000;

// One tensor of settings.elements elements in blocks of the default grid.
struct Tensor {
  Shape shape;
  std::vector<Box> boxes;
  device::Backends backends = device::HostBackends();
  uint64_t key = DigestKey("bench");

  explicit Tensor(const Settings& settings)
      : shape{settings.elements / 1024, 1024}, boxes(*GridBlocks(shape, DefaultGrid(shape))) {}

  TensorView Allocate(Dtype dtype) const { return AllocateTensor(dtype, shape); }
  device::Block At(const TensorView& view, size_t block, kernels::Cast cast) const {
    return {backends, view, boxes[block], cast, key};
  }
};

struct OptimizerState {
  TensorView theta, m, v;
  kernels::AdamwHyper hyper{.lr = kLearningRate, .weight_decay = 0.01, .step = kStep};

  OptimizerState(const Tensor& tensor, const Parallel& parallel)
      : theta(tensor.Allocate(Dtype::kF32)),
        m(tensor.Allocate(Dtype::kF32)),
        v(tensor.Allocate(Dtype::kF32)) {
    FillNormal(FloatsOf(theta), 0, 0.02f, 1, parallel);
    FillMoments(FloatsOf(m), FloatsOf(v), static_cast<float>(kGradient), 2, parallel);
  }
};

std::unique_ptr<detect::TensorWatch> Watch(const Tensor& tensor, const TensorView& live,
                                           detect::Method method) {
  auto watch = detect::TensorWatch::Create(tensor.backends, {"bench", live, Dtype::kBf16, tensor.boxes},
                                           method, "", kStep);
  return watch ? *std::move(watch) : nullptr;
}

std::string Rate(uint64_t bytes, double seconds) {
  return fmt::format("{:.1f} GB/s", static_cast<double>(bytes) * 1e-9 / seconds);
}

Status AddSnapshot(const Settings& settings, const Tensor& tensor, Report& report) {
  // Between two neighbouring BF16 values of every hundredth element on average.
  const TensorView live = tensor.Allocate(Dtype::kBf16);
  {
    const Parallel parallel(settings.threads);
    std::vector<float> weights(settings.elements);
    FillNormal(weights, 0, 0.02f, 3, parallel);
    parallel.For(tensor.boxes.size(), [&](uint64_t i) {
      const uint64_t first = tensor.boxes[i].start[0] * 1024;
      tensor.backends.host->copy({weights.data() + first, 0}, kernels::Cast::kF32ToBf16,
                                 static_cast<uint32_t>(ElementCount(tensor.boxes[i])),
                                 {live.memory->handle(), live.offset_bytes + first * 2});
    });
  }
  const TensorView old = tensor.Allocate(Dtype::kBf16);
  std::memcpy(old.memory->handle(), live.memory->handle(), old.memory->size_bytes());
  const auto watch = Watch(tensor, live, detect::Method::kSnapshot);
  if (!watch) return Fail(Code::kInternal, "the snapshot watch was refused");
  for (uint32_t i = 0; i < tensor.boxes.size(); ++i) DELTAWIRE_TRY(watch->Start(i));
  NearNormal random(4);
  auto* bits = static_cast<uint16_t*>(live.memory->handle()) + live.offset_bytes / 2;
  uint64_t changed = 0;
  for (uint64_t i = 0; i < settings.elements; ++i) {
    if (random.Word() % 100 != 0) continue;
    bits[i] ^= 1;
    ++changed;
  }

  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    const Parallel parallel(threads);
    const ReadFloor both({BytesOf(live), BytesOf(old)}, parallel);
    std::vector<uint64_t> found(tensor.boxes.size());
    const Contender compare{[&] {
      parallel.For(tensor.boxes.size(), [&](uint64_t i) {
        std::vector<uint32_t> positions;
        Bytes old_bits;
        Bytes new_bits;
        tensor.At(live, i, kernels::Cast::kBits16)
            .Compare(*old.memory, old.offset_bytes + tensor.boxes[i].start[0] * 1024 * 2, positions, old_bits,
                     new_bits);
        found[i] = positions.size();
      });
    }};
    std::vector<Status> collected(tensor.boxes.size());
    const Contender collect{[&] {
      parallel.For(tensor.boxes.size(), [&](uint64_t i) {
        const auto change = watch->Collect(static_cast<uint32_t>(i));
        collected[i] = change ? Status() : Status(Fail(change.error()));
      });
    }};
    const auto times = BestOf(settings.rounds, {{[&] { both.Run(); }}, compare, collect});
    for (const Status& status : collected) DELTAWIRE_TRY(status);
    uint64_t total = 0;
    for (const uint64_t count : found) total += count;
    if (total != changed) return Fail(Code::kInternal, "the snapshot found {} changes of {}", total, changed);

    const double each = 1e9 / static_cast<double>(settings.elements);
    const double floor = times[0].Of(threads) * each;
    report.Add(
        {.name = "detect.snapshot" + suffix,
         .value = times[1].Of(threads) * each,
         .unit = "ns/element",
         .floor = floor,
         .max_ratio = 1.3,
         .note = fmt::format("{} of {}; {:.2f} % changed", Rate(both.bytes(), times[1].Of(threads)),
                             Rate(both.bytes(), times[0].Of(threads)),
                             100.0 * static_cast<double>(changed) / static_cast<double>(settings.elements))});
    report.Add(
        {.name = "detect.snapshot_collect" + suffix,
         .value = times[2].Of(threads) * each,
         .unit = "ns/element",
         .floor = floor,
         .note =
             "as published: with the digest of all served bits and the proof that the change leads to it"});
    return {};
  });
}

Status AddInversion(const Settings& settings, const Tensor& tensor, Report& report) {
  const OptimizerState state(tensor, Parallel(settings.threads));
  const auto band = kernels::MakeAdamwBand(state.hyper);
  if (!band) return Fail(Code::kInternal, "{}", band.error());

  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    const Parallel parallel(threads);
    const ReadFloor all({BytesOf(state.theta), BytesOf(state.m), BytesOf(state.v)}, parallel);
    std::vector<uint64_t> changed(tensor.boxes.size());
    std::vector<uint64_t> uncertain(tensor.boxes.size());
    const Contender invert{[&] {
      parallel.For(tensor.boxes.size(), [&](uint64_t i) {
        Digest digest;
        const auto found = tensor.At(state.theta, i, kernels::Cast::kF32ToBf16)
                               .InvertAdamw(state.m, state.v, *band, &digest);
        changed[i] = found.changed.size();
        uncertain[i] = found.uncertain.size();
      });
    }};
    const Contender invert_only{[&] {
      parallel.For(tensor.boxes.size(), [&](uint64_t i) {
        changed[i] = tensor.At(state.theta, i, kernels::Cast::kF32ToBf16)
                         .InvertAdamw(state.m, state.v, *band, nullptr)
                         .changed.size();
      });
    }};
    const auto watch = Watch(tensor, state.theta, detect::Method::kInversion);
    if (!watch) return Fail(Code::kInternal, "the inversion watch was refused");
    std::vector<Status> statuses(tensor.boxes.size());
    parallel.For(statuses.size(), [&](uint64_t i) { statuses[i] = watch->Start(static_cast<uint32_t>(i)); });
    uint64_t step = kStep;
    // Nothing else may fail: the same state is inverted again and again under the next number.
    const Contender observe{[&] {
      parallel.For(statuses.size(),
                   [&](uint64_t i) { statuses[i] = watch->CheckFence(static_cast<uint32_t>(i)); });
      const detect::StepRecord record{++step, detect::StepRecord::Adam{state.m, state.v, *band}, ""};
      watch->ObserveStep(record);
      parallel.For(statuses.size(), [&](uint64_t i) {
        if (statuses[i]) statuses[i] = watch->InvertBlock(static_cast<uint32_t>(i), record);
      });
    }};
    const auto times = BestOf(settings.rounds, {{[&] { all.Run(); }}, invert_only, invert, observe});
    for (const Status& status : statuses) DELTAWIRE_TRY(status);

    uint64_t changes = 0;
    uint64_t unsure = 0;
    for (size_t i = 0; i < changed.size(); ++i) {
      changes += changed[i];
      unsure += uncertain[i];
    }
    const auto elements = static_cast<double>(settings.elements);
    const double each = 1e9 / elements;
    const double floor = times[0].Of(threads) * each;
    const auto note = [&](double seconds) {
      return fmt::format("{} of {}; {:.2f} % changed, {:.3f} % uncertain", Rate(all.bytes(), seconds),
                         Rate(all.bytes(), times[0].Of(threads)),
                         100 * static_cast<double>(changes) / elements,
                         100 * static_cast<double>(unsure) / elements);
    };
    report.Add({.name = "detect.adamw_inversion" + suffix,
                .value = times[1].Of(threads) * each,
                .unit = "ns/element",
                .floor = floor,
                .max_ratio = 1.4,
                .note = note(times[1].Of(threads))});
    report.Add({.name = "detect.adamw_inversion_with_digest" + suffix,
                .value = times[2].Of(threads) * each,
                .unit = "ns/element",
                .floor = floor,
                .max_ratio = 1.7,
                .note = note(times[2].Of(threads))});
    report.Add({.name = "detect.observe_step" + suffix,
                .value = times[3].Of(threads) * each,
                .unit = "ns/element",
                .floor = floor,
                .note = "as a step costs: fence (theta read again), inversion, merge into the log"});
    return {};
  });
}

Status AddDigest(const Settings& settings, const Tensor& tensor, Report& report) {
  const TensorView live = tensor.Allocate(Dtype::kBf16);
  NearNormal random(5);
  auto* words = static_cast<uint64_t*>(live.memory->handle());
  for (uint64_t i = 0; i < live.memory->size_bytes() / 8; ++i) words[i] = random.Word();
  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    const Parallel parallel(threads);
    const ReadFloor read({BytesOf(live)}, parallel);
    std::vector<Digest> digests(tensor.boxes.size());
    const auto times =
        BestOf(settings.rounds, {{[&] { read.Run(); }}, {[&] {
                                   parallel.For(digests.size(), [&](uint64_t i) {
                                     digests[i] = tensor.At(live, i, kernels::Cast::kBits16).DigestNow();
                                   });
                                 }}});
    const double each = 1e9 / static_cast<double>(settings.elements);
    report.Add({.name = "digest.full" + suffix,
                .value = times[1].Of(threads) * each,
                .unit = "ns/element",
                .floor = times[0].Of(threads) * each,
                .note = fmt::format("BF16; {} of {}", Rate(read.bytes(), times[1].Of(threads)),
                                    Rate(read.bytes(), times[0].Of(threads)))});
    return {};
  });
}

}  // namespace

Status AddDetectFigures(const Settings& settings, Report& report) {
  const Tensor tensor(settings);
  DELTAWIRE_TRY(AddSnapshot(settings, tensor, report));
  DELTAWIRE_TRY(AddInversion(settings, tensor, report));
  return AddDigest(settings, tensor, report);
}

}  // namespace deltawire::bench
