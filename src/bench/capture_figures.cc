// Capture around the update of each parameter of a real model's shapes, against reading the parameter before
// and after it. The update itself is not timed: it runs between the two halves of either.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include "bench/detect_tensor.h"
#include "bench/figures.h"
#include "bench/floors.h"
#include "bench/timing.h"
#include "bench/trainer.h"
#include "detect/model_watch.h"

namespace deltawire::bench {
namespace {

constexpr int kMostRounds = 5;

struct Captured {
  std::string name;
  std::vector<TensorView> tensors;
  std::function<void()> begin_step;
  std::function<void(uint32_t tensor)> step;
};

Result<std::unique_ptr<detect::ModelWatch>> WatchAll(const std::vector<TensorView>& tensors,
                                                     const Parallel& parallel) {
  std::vector<detect::WatchSpec> specs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    specs.push_back({{std::to_string(i), tensors[i], Dtype::kBf16,
                      *GridBlocks(tensors[i].shape, DefaultGrid(tensors[i].shape))},
                     detect::Method::kCapture,
                     "",
                     0});
  }
  return detect::ModelWatch::Create(device::HostBackends(), parallel, std::move(specs));
}

// Publishes what was captured, to nobody.
Result<uint64_t> Publish(detect::ModelWatch& watch) {
  detect::ModelWatch::Changes changes;
  DELTAWIRE_TRY(watch.Collect(changes));
  detect::ModelWatch::ChangePointers durable(changes.size());
  uint64_t changed = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    for (const BlockChange& change : changes[i]) {
      if (change.dense) return Fail(Code::kInternal, "a captured tensor went dense");
      changed += change.changed.size();
      durable[i].push_back(&change);
    }
  }
  DELTAWIRE_TRY(watch.Confirm(durable));
  return changed;
}

Status AddCapture(const Settings& settings, const Captured& captured, Report& report) {
  uint64_t elements = 0;
  for (const TensorView& tensor : captured.tensors) elements += *ElementCount(tensor.shape);
  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    const Parallel parallel(threads);
    std::vector<std::unique_ptr<ReadFloor>> floors;
    for (const TensorView& tensor : captured.tensors) {
      floors.push_back(std::make_unique<ReadFloor>(std::vector<ByteSpan>{BytesOf(tensor)}, parallel));
    }
    DELTAWIRE_ASSIGN(const auto watch, WatchAll(captured.tensors, parallel));
    Status status;
    const auto keep = [&status](Status now) {
      if (status && !now) status = std::move(now);
    };
    // Seconds of both halves of every tensor; the step runs between them. Every step is captured, as in
    // training; where the floor is timed it reads each tensor before the capture does.
    const auto one_step = [&](bool time_floor) {
      captured.begin_step();
      double taken = 0;
      const auto half = [&](uint32_t i, const auto& capture) {
        if (time_floor) taken += Time([&] { floors[i]->Run(); }).Of(threads);
        const double capturing = Time(capture).Of(threads);
        if (!time_floor) taken += capturing;
      };
      for (uint32_t i = 0; i < captured.tensors.size(); ++i) {
        half(i, [&] { keep(watch->BeginCapture({&i, 1})); });
        captured.step(i);
        half(i, [&] { keep(watch->EndCapture({&i, 1})); });
      }
      return taken;
    };
    double value = std::numeric_limits<double>::infinity();
    double floor = value;
    uint64_t changed = 0;
    for (int round = 0; round <= std::min(settings.rounds, kMostRounds); ++round) {
      const double reading = one_step(true);
      DELTAWIRE_ASSIGN(changed, Publish(*watch));
      const double capturing = one_step(false);
      DELTAWIRE_ASSIGN(changed, Publish(*watch));
      DELTAWIRE_TRY(status);
      if (round == 0) continue;
      value = std::min(value, capturing);
      floor = std::min(floor, reading);
    }
    const double each = 1e9 / static_cast<double>(elements);
    report.Add(
        {.name = captured.name + suffix,
         .value = value * each,
         .unit = "ns/element",
         .floor = floor * each,
         .max_ratio = 1.3,
         .note = fmt::format("{} tensors, {} elements, {:.2f} % changed", captured.tensors.size(), elements,
                             100 * static_cast<double>(changed) / static_cast<double>(elements))});
    return {};
  });
}

// Moves every hundredth element or so to its neighbour.
void StepBits(const TensorView& tensor, uint64_t seed) {
  auto* bits = static_cast<uint16_t*>(tensor.memory->handle()) + tensor.offset_bytes / sizeof(uint16_t);
  const uint64_t count = *ElementCount(tensor.shape);
  for (uint64_t i = 0; i < count; ++i) {
    const auto hash = static_cast<uint32_t>((i + seed) * 0x9E3779B97F4A7C15 >> 32) * 0x85EBCA6B;
    bits[i] = static_cast<uint16_t>(bits[i] ^ (hash < 0x028F5C28 ? 1 : 0));
  }
}

}  // namespace

Status AddCaptureFigures(const Settings& settings, Report& report) {
  const auto trainer =
      std::make_unique<Trainer>(settings.quick ? kTiny : kSmolLm135M, Parallel(settings.threads));
  Captured master{
      "detect.capture", {}, [&] { trainer->BeginStep(); }, [&](uint32_t i) { trainer->StepParameter(i); }};
  for (const Trainer::Parameter& parameter : trainer->parameters()) master.tensors.push_back(parameter.theta);
  DELTAWIRE_TRY(AddCapture(settings, master, report));

  uint64_t seed = 0;
  Captured half{"detect.capture_bf16", {}, [&] { ++seed; }, nullptr};
  for (const TensorView& theta : master.tensors) {
    half.tensors.push_back(AllocateTensor(Dtype::kBf16, theta.shape));
    const TensorView& to = half.tensors.back();
    const auto from = FloatsOf(theta);
    auto* bits = static_cast<uint16_t*>(to.memory->handle()) + to.offset_bytes / sizeof(uint16_t);
    for (uint64_t at = 0; at < from.size(); at += kernels::kMaxElements) {
      kernels::CpuTable().read(
          {from.data() + at, 0}, kernels::Cast::kF32ToBf16,
          static_cast<uint32_t>(std::min<uint64_t>(kernels::kMaxElements, from.size() - at)), bits + at);
    }
  }
  half.step = [&](uint32_t i) { StepBits(half.tensors[i], (seed << 40) + i); };
  return AddCapture(settings, half, report);
}

}  // namespace deltawire::bench
