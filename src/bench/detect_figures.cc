#include <cstring>

#include "bench/detect_tensor.h"
#include "bench/figures.h"
#include "bench/floors.h"
#include "bench/inversion_figures.h"
#include "bench/timing.h"

namespace deltawire::bench {
namespace {

Status AddSnapshot(const Settings& settings, const DetectTensor& tensor, Report& report) {
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
  const auto watch = tensor.Watch(live, detect::Method::kSnapshot, 0);
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

Status AddDigest(const Settings& settings, const DetectTensor& tensor, Report& report) {
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
  const DetectTensor tensor(settings);
  DELTAWIRE_TRY(AddSnapshot(settings, tensor, report));
  DELTAWIRE_TRY(AddAdamwInversion(settings, tensor, report));
  return AddDigest(settings, tensor, report);
}

Status AddInversionFigures(const Settings& settings, Report& report) {
  const DetectTensor tensor(settings);
  DELTAWIRE_TRY(AddBf16MomentsInversion(settings, tensor, report));
  return AddSgdInversion(settings, tensor, report);
}

}  // namespace deltawire::bench
