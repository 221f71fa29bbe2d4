// Our update of a model beside what other systems' methods make of the same change: bytes, time, and both
// together over a network.
#include <algorithm>
#include <array>
#include <numeric>

#include "bench/entropy_floor.h"
#include "bench/figures.h"
#include "bench/peers/peer.h"
#include "bench/random_weights.h"
#include "bench/trainer.h"
#include "bench/wire_coding.h"
#include "pubsub/coding_name.h"
#include "store/memory/memory_store.h"

namespace deltawire::bench {
namespace {

constexpr codec::Coding kCodings[] = {codec::Coding::kClass, codec::Coding::kStep, codec::Coding::kAbsolute};
constexpr int kMostRounds = 3;  // whole-model zstd takes seconds

struct Rate {
  const char* name;
  double bits_per_second;
};
constexpr Rate kRates[] = {{"100m", 1e8}, {"1g", 1e9}, {"10g", 1e10}};

// What one method makes of a model.
struct Outcome {
  std::string name;
  uint64_t bytes = 0;
  double encode = 0;  // seconds, one thread
  double apply = 0;
  double Total(const Rate& rate) const {
    return encode + apply + 8 * static_cast<double>(bytes) / rate.bits_per_second;
  }
};

// The model's tensors as peers take them.
class PeerModel {
 public:
  explicit PeerModel(const WireModel& model) {
    const auto source = model.source();
    changed_.resize(model.old_views().size());
    for (const auto& tensor : model.changes()) {
      const Shape& shape = model.inventory().tensors[tensor.tensor].shape;
      for (const auto& block : tensor.blocks) {
        const auto first = RunStart(model.grid().boxes(tensor.tensor)[block.block], shape);
        for (const uint32_t at : block.change.changed) {
          changed_[tensor.tensor].push_back(static_cast<uint32_t>(*first + at));
        }
      }
    }
    for (uint32_t i = 0; i < changed_.size(); ++i) {
      const Shape& shape = model.inventory().tensors[i].shape;
      const ByteSpan now = source.view(i, {std::vector<uint64_t>(shape.size(), 0), shape});
      pairs_.push_back({BytesOf(model.old_views()[i]), now, 2, shape.back(), changed_[i]});
    }
  }
  const std::vector<TensorPair>& pairs() const { return pairs_; }
  // The receiver's copy, before each application.
  void Reset() {
    live_.resize(pairs_.size());
    for (size_t i = 0; i < pairs_.size(); ++i) live_[i].assign(pairs_[i].base.begin(), pairs_[i].base.end());
  }
  Bytes& live(size_t tensor) { return live_[tensor]; }
  bool IsNow() const {
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (!std::equal(live_[i].begin(), live_[i].end(), pairs_[i].now.begin())) return false;
    }
    return true;
  }

 private:
  std::vector<std::vector<uint32_t>> changed_;
  std::vector<TensorPair> pairs_;
  std::vector<Bytes> live_;
};

Result<Outcome> Run(Peer& peer, PeerModel& model, int rounds) {
  std::vector<Bytes> wires(model.pairs().size());
  const Contender encode{[&] {
    for (size_t i = 0; i < wires.size(); ++i) peer.Encode(model.pairs()[i], wires[i]);
  }};
  const Contender apply{[&] {
                          for (size_t i = 0; i < wires.size(); ++i) {
                            const TensorPair& pair = model.pairs()[i];
                            peer.Apply(wires[i], pair.width, pair.row, model.live(i));
                          }
                        },
                        [&] { model.Reset(); }};
  const auto times = BestOf(rounds, {encode, apply});
  if (!model.IsNow()) return Fail(Code::kInternal, "method {} did not give the new bits", peer.name());
  Outcome out{std::string(peer.name()), 0, times[0].cpu, times[1].cpu};
  for (const Bytes& wire : wires) out.bytes += wire.size();
  return out;
}

// One of our codings on one thread, with everything that a publisher and a receiver do between the change set
// and the live tensors.
Result<Outcome> RunOurs(const WireModel& model, codec::Coding coding, int rounds) {
  DELTAWIRE_ASSIGN(const auto wire, WireCoding::Make(model, coding, Parallel(1)));
  Race race;
  const auto times = BestOf(rounds, {race.Run([&] { return wire->Encode(); }),
                                     race.Run([&] { return wire->Apply(); }, [&] { return wire->Undo(); })});
  DELTAWIRE_TRY(race.status());
  DELTAWIRE_TRY(wire->Undo());
  return Outcome{std::string(pubsub::CodingName(coding)), wire->size_bytes(), times[0].cpu, times[1].cpu};
}

std::string Milliseconds(const Outcome& outcome) {
  return fmt::format(
      "encode {:.1f} ms, decode and apply {:.1f} ms; at 0.1, 1, 10 Gbit/s {:.0f}, {:.0f}, {:.0f} ms",
      1e3 * outcome.encode, 1e3 * outcome.apply, 1e3 * outcome.Total(kRates[0]),
      1e3 * outcome.Total(kRates[1]), 1e3 * outcome.Total(kRates[2]));
}

Status AddDensity(const Settings& settings, const WireDensity& density, Report& report) {
  const int rounds = std::min(settings.rounds, kMostRounds);
  const WireModel model(settings.elements, density.lr, Parallel(settings.threads));
  const std::string suffix = std::string(".") + density.name;
  const auto changed = static_cast<double>(model.changed());
  std::vector<Outcome> ours;
  for (const auto coding : kCodings) {
    DELTAWIRE_ASSIGN(ours.emplace_back(), RunOurs(model, coding, rounds));
    const bool dense = density.lr == kDense.lr;
    using enum codec::Coding;
    report.Add({.name = fmt::format("wire.{}.bytes_per_changed{}", ours.back().name, suffix),
                .value = static_cast<double>(ours.back().bytes) / changed,
                .unit = "B/change",
                .max_value = dense && coding == kStep       ? std::optional(1.16)
                             : dense && coding == kAbsolute ? std::optional(2.40)
                                                            : std::nullopt,
                .note = Milliseconds(ours.back())});
  }

  PeerModel tensors(model);
  EntropyFloor floor;
  for (const TensorPair& pair : tensors.pairs()) floor.Add(pair.base, pair.now);
  report.Add({.name = "wire.class.bytes_vs_bound" + suffix,
              .value = static_cast<double>(ours[0].bytes) - 2048,
              .unit = "B",
              .floor = floor.bytes(),
              .max_ratio = 1.04,
              .note = "less 2 KiB; the floor: adaptive code length given the exponent"});

  std::vector<Outcome> theirs;
  for (const auto& peer : AllPeers()) {
    DELTAWIRE_ASSIGN(theirs.emplace_back(), Run(*peer, tensors, rounds));
    const Outcome& outcome = theirs.back();
    report.Add({.name = fmt::format("wire.peer.{}.bytes_per_changed{}", outcome.name, suffix),
                .value = static_cast<double>(outcome.bytes) / changed,
                .unit = "B/change",
                .note = Milliseconds(outcome)});
    if (outcome.name == "gap_xor_zstd1") {
      report.Add({.name = "wire.class.bytes_vs_gap_xor_zstd" + suffix,
                  .value = static_cast<double>(ours[0].bytes),
                  .unit = "B",
                  .floor = static_cast<double>(outcome.bytes),
                  .max_ratio = 0.52});
    }
  }
  for (const Rate& rate : kRates) {
    const auto less = [&](const Outcome& a, const Outcome& b) { return a.Total(rate) < b.Total(rate); };
    const Outcome& best = *std::min_element(ours.begin(), ours.end(), less);
    const Outcome& rival = *std::min_element(theirs.begin(), theirs.end(), less);
    report.Add(
        {.name = fmt::format("wire.total_vs_best_peer.{}{}", rate.name, suffix),
         .value = 1e3 * best.Total(rate),
         .unit = "ms",
         .floor = 1e3 * rival.Total(rate),
         .max_ratio = 1,
         .note = fmt::format("encode, transfer, decode and apply: {} against {}", best.name, rival.name)});
  }
  const auto fewest = std::min_element(theirs.begin(), theirs.end(),
                                       [](const Outcome& a, const Outcome& b) { return a.bytes < b.bytes; });
  report.Add({.name = "wire.class.bytes_vs_best_peer" + suffix,
              .value = static_cast<double>(ours[0].bytes),
              .unit = "B",
              .floor = static_cast<double>(fewest->bytes),
              .max_ratio = 1,
              .note = "the best peer: " + fewest->name});
  return {};
}

// Every element at random: nothing may cost more than its bits.
Status AddRandom(const Settings& settings, Report& report) {
  const WireModel model(std::min<uint64_t>(settings.elements, 1 << 24), 1.0f, Parallel(settings.threads));
  for (const auto coding : kCodings) {
    DELTAWIRE_ASSIGN(const Outcome outcome, RunOurs(model, coding, 1));
    report.Add({.name = fmt::format("wire.{}.bytes_vs_raw.random", outcome.name),
                .value = static_cast<double>(outcome.bytes) - 1024,
                .unit = "B",
                .floor = 2.0 * static_cast<double>(model.elements()),
                .max_ratio = 1.001,
                .note = "less 1 KiB; every element changes"});
  }
  return {};
}

// What a detector without a copy costs in bytes: the publisher's update with uncertain elements, beside the
// update of one that knows both versions.
Status AddUncertain(const Settings& settings, Report& report) {
  Trainer trainer(settings.quick ? kTiny : kSmolLm135M, Parallel(settings.threads));
  const auto open = [&](bool snapshot) {
    pubsub::PublisherOptions options;
    options.store = std::make_shared<MemoryStore>();
    options.cast_rule = "F32 served as BF16";
    options.parallel = Parallel(settings.threads);
    options.codings = {codec::Coding::kClass};
    auto tensors = trainer.PublishedTensors();
    for (auto& tensor : tensors) {
      if (snapshot) tensor.method = detect::Method::kSnapshot;
    }
    return pubsub::Publisher::Open(options, std::move(tensors));
  };
  DELTAWIRE_ASSIGN(const auto inverting, open(false));
  DELTAWIRE_ASSIGN(const auto comparing, open(true));
  std::vector<uint32_t> all(inverting->size());
  std::iota(all.begin(), all.end(), 0u);
  double with_uncertain = 0;
  double without = 0;
  uint64_t changed = 0;
  uint64_t uncertain = 0;
  for (int version = 0; version < 3; ++version) {
    DELTAWIRE_TRY(inverting->BeforeStep(all));
    trainer.Step();
    DELTAWIRE_TRY(inverting->AfterStep(trainer.LastStep()));
    DELTAWIRE_ASSIGN(const auto inverted, inverting->Publish());
    DELTAWIRE_ASSIGN(const auto compared, comparing->Publish());
    if (inverted.digest != compared.digest)
      return Fail(Code::kInternal, "two publishers of one model differ");
    with_uncertain += static_cast<double>(inverted.bytes);
    without += static_cast<double>(compared.bytes);
    changed += compared.changed;
    uncertain += inverted.uncertain;
  }
  report.Add({.name = "wire.class.bytes_inversion_vs_snapshot",
              .value = with_uncertain / 3,
              .unit = "B",
              .floor = without / 3,
              .max_ratio = 1.10,
              .note = fmt::format(
                  "{} elements; {:.3f} % changed, {:.4f} % uncertain", trainer.elements(),
                  100 * static_cast<double>(changed) / 3 / static_cast<double>(trainer.elements()),
                  100 * static_cast<double>(uncertain) / 3 / static_cast<double>(trainer.elements()))});
  return {};
}

}  // namespace

Status AddPeerFigures(const Settings& settings, Report& report) {
  for (const WireDensity& density : {kDense, kMid, kSparse})
    DELTAWIRE_TRY(AddDensity(settings, density, report));
  DELTAWIRE_TRY(AddUncertain(settings, report));
  return AddRandom(settings, report);
}

Status AddSweepFigures(const Settings& settings, Report& report) {
  // From about 0.01 % to 50 % changed; a small model, for only bytes are looked at.
  for (const float lr :
       {2.5e-9f, 8e-9f, 2.5e-8f, 8e-8f, 2.5e-7f, 8e-7f, 2.5e-6f, 8e-6f, 2.5e-5f, 8e-5f, 2.5e-4f}) {
    const WireModel model(std::min<uint64_t>(settings.elements, 1 << 25), lr, Parallel(settings.threads));
    if (model.changed() == 0) continue;
    const auto changed = static_cast<double>(model.changed());
    const std::string suffix = fmt::format(".{:.4g}", changed / static_cast<double>(model.elements()));
    const auto add = [&](std::string_view name, double bytes) {
      report.Add({.name = fmt::format("wire.sweep.{}{}", name, suffix),
                  .value = bytes / changed,
                  .unit = "B/change"});
    };
    for (const auto coding : kCodings) {
      DELTAWIRE_ASSIGN(const Outcome outcome, RunOurs(model, coding, 1));
      add(outcome.name, static_cast<double>(outcome.bytes));
    }
    PeerModel tensors(model);
    EntropyFloor floor;
    for (const TensorPair& pair : tensors.pairs()) floor.Add(pair.base, pair.now);
    add("floor", floor.bytes());
    for (const auto& peer : AllPeers()) {
      if (peer->name() == "patch_from" || peer->name() == "whole_zstd3")
        continue;  // seconds each, never near
      DELTAWIRE_ASSIGN(const Outcome outcome, Run(*peer, tensors, 1));
      add(outcome.name, static_cast<double>(outcome.bytes));
    }
  }
  return {};
}

}  // namespace deltawire::bench
