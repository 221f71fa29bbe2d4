#include "bench/inversion_figures.h"

#include "bench/figures.h"
#include "bench/floors.h"
#include "bench/timing.h"
#include "kernels/adamw_band.h"
#include "kernels/sgd_band.h"

namespace deltawire::bench {
namespace {

constexpr float kGradient = 1e-4f;
constexpr double kLearningRate = 2e-6;     // with these moments about one BF16 weight in a hundred changes
constexpr double kSgdLearningRate = 6e-3;  // as does here
constexpr uint64_t kStep = 1000;
const kernels::AdamwHyper kHyper{.lr = kLearningRate, .weight_decay = 0.01, .step = kStep};

struct Floats {
  TensorView theta, m, v;

  Floats(const DetectTensor& tensor, const Parallel& parallel)
      : theta(tensor.Allocate(Dtype::kF32)),
        m(tensor.Allocate(Dtype::kF32)),
        v(tensor.Allocate(Dtype::kF32)) {
    FillNormal(FloatsOf(theta), 0, 0.02f, 1, parallel);
    FillMoments(FloatsOf(m), FloatsOf(v), kGradient, 2, parallel);
  }
};

TensorView Rounded(const DetectTensor& tensor, const TensorView& from, const Parallel& parallel) {
  TensorView to = tensor.Allocate(Dtype::kBf16);
  parallel.For(tensor.boxes.size(), [&](uint64_t i) {
    const uint64_t first = tensor.boxes[i].start[0] * 1024;
    tensor.backends.host->copy({from.memory->handle(), from.offset_bytes + first * sizeof(float)},
                               kernels::Cast::kF32ToBf16,
                               static_cast<uint32_t>(ElementCount(tensor.boxes[i])),
                               {to.memory->handle(), to.offset_bytes + first * sizeof(uint16_t)});
  });
  return to;
}

// One way to undo a step, and the arrays of equal size that it reads.
struct Inverter {
  std::string name;
  std::vector<ByteSpan> reads;
  std::function<device::Inversion(size_t block, Digest* digest)> invert;
};

// What must hold: a ratio on one thread, and on all.
struct Bound {
  double one, all;
  double Of(int threads) const { return threads == 1 ? one : all; }
};

Status AddInverter(const Settings& settings, const DetectTensor& tensor, const Inverter& inverter,
                   const Bound& alone, const Bound& with_digest, Report& report) {
  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    const Parallel parallel(threads);
    const uint64_t blocks = tensor.boxes.size();
    std::vector<uint64_t> changed(blocks);
    std::vector<uint64_t> uncertain(blocks);
    const auto run = [&](bool digest) {
      return Contender{[&, digest] {
        parallel.For(blocks, [&](uint64_t i) {
          Digest now;
          const auto found = inverter.invert(i, digest ? &now : nullptr);
          changed[i] = found.changed.size();
          uncertain[i] = found.uncertain.size();
        });
      }};
    };
    const ReadFloor floor(inverter.reads, parallel);
    const auto times = BestOf(settings.rounds, {{[&] { floor.Run(); }}, run(false), run(true)});
    uint64_t changes = 0;
    uint64_t unsure = 0;
    for (size_t i = 0; i < blocks; ++i) {
      changes += changed[i];
      unsure += uncertain[i];
    }
    const auto elements = static_cast<double>(settings.elements);
    const auto add = [&](const std::string& name, const Elapsed& taken, double max_ratio) {
      report.Add({.name = name + suffix,
                  .value = taken.Of(threads) * 1e9 / elements,
                  .unit = "ns/element",
                  .floor = times[0].Of(threads) * 1e9 / elements,
                  .max_ratio = max_ratio,
                  .note = fmt::format("{} of {}; {:.2f} % changed, {:.3f} % uncertain",
                                      Rate(floor.bytes(), taken.Of(threads)),
                                      Rate(floor.bytes(), times[0].Of(threads)),
                                      100 * static_cast<double>(changes) / elements,
                                      100 * static_cast<double>(unsure) / elements)});
    };
    add(inverter.name, times[1], alone.Of(threads));
    add(inverter.name + "_with_digest", times[2], with_digest.Of(threads));
    return {};
  });
}

Status AddObserveStep(const Settings& settings, const DetectTensor& tensor, const Floats& state,
                      Report& report) {
  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    const Parallel parallel(threads);
    const auto watch = tensor.Watch(state.theta, detect::Method::kInversion, kStep);
    if (!watch) return Fail(Code::kInternal, "the inversion watch was refused");
    std::vector<Status> statuses(tensor.boxes.size());
    parallel.For(statuses.size(), [&](uint64_t i) { statuses[i] = watch->Start(static_cast<uint32_t>(i)); });
    uint64_t step = kStep;
    // Nothing else may fail: the same state is inverted again and again under the next number.
    const Contender observe{[&] {
      parallel.For(statuses.size(),
                   [&](uint64_t i) { statuses[i] = watch->CheckFence(static_cast<uint32_t>(i)); });
      const detect::StepRecord record =
          detect::MakeStepRecord({++step, detect::AdamStep{kHyper, state.m, state.v}, ""}, tensor.shape);
      watch->ObserveStep(record);
      parallel.For(statuses.size(), [&](uint64_t i) {
        if (statuses[i]) statuses[i] = watch->InvertBlock(static_cast<uint32_t>(i), record);
      });
    }};
    const ReadFloor floor({BytesOf(state.theta), BytesOf(state.m), BytesOf(state.v)}, parallel);
    const auto times = BestOf(settings.rounds, {{[&] { floor.Run(); }}, observe});
    for (const Status& status : statuses) DELTAWIRE_TRY(status);
    const double each = 1e9 / static_cast<double>(settings.elements);
    report.Add({.name = "detect.observe_step" + suffix,
                .value = times[1].Of(threads) * each,
                .unit = "ns/element",
                .floor = times[0].Of(threads) * each,
                .note = "as a step costs: fence (theta read again), inversion, merge into the log"});
    return {};
  });
}

}  // namespace

Status AddAdamwInversion(const Settings& settings, const DetectTensor& tensor, Report& report) {
  const Floats state(tensor, Parallel(settings.threads));
  const auto band = kernels::MakeAdamwBand(kHyper);
  if (!band) return Fail(Code::kInternal, "{}", band.error());
  const Inverter inverter{"detect.adamw_inversion",
                          {BytesOf(state.theta), BytesOf(state.m), BytesOf(state.v)},
                          [&](size_t block, Digest* digest) {
                            return tensor.At(state.theta, block, kernels::Cast::kF32ToBf16)
                                .InvertAdamw(state.m, state.v, *band, digest);
                          }};
  DELTAWIRE_TRY(AddInverter(settings, tensor, inverter, {1.4, 1.2}, {1.7, 1.5}, report));
  return AddObserveStep(settings, tensor, state, report);
}

Status AddBf16MomentsInversion(const Settings& settings, const DetectTensor& tensor, Report& report) {
  const Parallel parallel(settings.threads);
  const auto full = std::make_unique<Floats>(tensor, parallel);
  const TensorView theta = full->theta;
  const TensorView m = Rounded(tensor, full->m, parallel);
  const TensorView v = Rounded(tensor, full->v, parallel);
  const auto band = kernels::MakeAdamwBand(kHyper, kernels::kBf16Moments);
  if (!band) return Fail(Code::kInternal, "{}", band.error());
  // The floor reads arrays of equal size: the weights in two halves.
  const ByteSpan weights = BytesOf(theta);
  const uint64_t half = weights.size() / 2;
  const Inverter inverter{
      "detect.adamw_inversion_bf16_moments",
      {weights.first(half), weights.subspan(half), BytesOf(m), BytesOf(v)},
      [&](size_t block, Digest* digest) {
        return tensor.At(theta, block, kernels::Cast::kF32ToBf16).InvertAdamw(m, v, *band, digest);
      }};
  return AddInverter(settings, tensor, inverter, {1.4, 1.2}, {1.7, 1.5}, report);
}

Status AddSgdInversion(const Settings& settings, const DetectTensor& tensor, Report& report) {
  const Floats state(tensor, Parallel(settings.threads));
  FillNormal(FloatsOf(state.v), 0, kGradient, 3, Parallel(settings.threads));
  for (const bool nesterov : {false, true}) {
    const auto band = kernels::MakeSgdBand(
        nesterov ? kernels::SgdHyper{.lr = kSgdLearningRate, .weight_decay = 1e-4, .mu = 0.9}
                 : kernels::SgdHyper{.lr = kSgdLearningRate});
    if (!band) return Fail(Code::kInternal, "{}", band.error());
    Inverter inverter{nesterov ? "detect.sgd_nesterov_inversion" : "detect.sgd_inversion",
                      {BytesOf(state.theta), BytesOf(state.m)},
                      [&](size_t block, Digest* digest) {
                        return tensor.At(state.theta, block, kernels::Cast::kF32ToBf16)
                            .InvertSgd(state.m, nesterov ? &state.v : nullptr, *band, digest);
                      }};
    if (nesterov) inverter.reads.push_back(BytesOf(state.v));
    DELTAWIRE_TRY(AddInverter(settings, tensor, inverter, {1.4, 1.2}, {1.7, 1.5}, report));
  }
  return {};
}

}  // namespace deltawire::bench
