// How fast an update is made and applied, as multiples of reading and copying the model it is for.
#include <cstring>

#include "bench/figures.h"
#include "bench/floors.h"
#include "bench/random_weights.h"
#include "bench/wire_coding.h"

namespace deltawire::bench {
namespace {

struct Bars {
  WireDensity density;
  // The least memcmp / encode and memcpy / (decode and apply).
  double encode;
  double apply;
};
constexpr Bars kBars[] = {{kDense, 0.33, 0.42}, {kMid, 0.45, 0.70}, {kSparse, 0.58, 1.0}};

// Two equal arrays as large as a model, in the kind of memory that its tensors have.
class Copies {
 public:
  explicit Copies(uint64_t elements)
      : from_(AllocateTensor(Dtype::kBf16, {elements})), to_(AllocateTensor(Dtype::kBf16, {elements})) {
    std::memset(data(from_), 1, size());
    std::memset(data(to_), 1, size());
  }
  void Copy() { std::memcpy(data(to_), data(from_), size()); }
  void Compare() { equal_ = std::memcmp(data(to_), data(from_), size()) == 0; }

 private:
  static uint8_t* data(const TensorView& view) {
    return static_cast<uint8_t*>(view.memory->handle()) + view.offset_bytes;
  }
  uint64_t size() const { return BytesOf(from_).size(); }

  TensorView from_;
  TensorView to_;
  volatile bool equal_ = false;  // or no compiler need compare
};

void AddRatio(const std::string& name, double ratio, double least, std::string note, Report& report) {
  report.Add({.name = name, .value = ratio, .unit = "x", .min_value = least, .note = std::move(note)});
}

Status AddDensity(const Settings& settings, const Bars& bars, Report& report) {
  const WireModel model(settings.elements, bars.density.lr, Parallel(settings.threads));
  const std::string suffix = std::string(".") + bars.density.name;
  const bool sparse = bars.density.lr == kSparse.lr;
  Copies copies(model.elements());
  DELTAWIRE_ASSIGN(const auto by_class, WireCoding::Make(model, codec::Coding::kClass, Parallel(1)));
  DELTAWIRE_ASSIGN(const auto by_step, WireCoding::Make(model, codec::Coding::kStep, Parallel(1)));
  Race race;
  const auto undo_class = [&] { return by_class->Undo(); };
  const auto undo_step = [&] { return by_step->Undo(); };
  std::vector<Contender> contenders = {
      {[&] { copies.Compare(); }},
      {[&] { copies.Copy(); }},
      race.Run([&] { return by_class->Encode(); }),
      race.Run([&] { return by_class->Apply(); }, undo_class),
      // The step replica sees the same live tensors: they must be back at the old version.
      race.Run([] { return Status(); }, undo_class)};
  if (sparse) {
    contenders.push_back(race.Run([&] { return by_step->Apply(); }, undo_step));
    contenders.push_back(race.Run([] { return Status(); }, undo_step));
  }
  const auto times = BestOf(settings.rounds, contenders);
  DELTAWIRE_TRY(race.status());

  const auto changed = static_cast<double>(model.changed());
  const auto elements = static_cast<double>(model.elements());
  const std::string note =
      fmt::format("{:.2f} % changed, {:.3f} B/change; memcmp {:.1f}, memcpy {:.1f} GB/s",
                  100 * changed / elements, static_cast<double>(by_class->size_bytes()) / changed,
                  2e-9 * elements / times[0].cpu, 2e-9 * elements / times[1].cpu);
  AddRatio("wire.class.encode_vs_memcmp" + suffix, times[0].cpu / times[2].cpu, bars.encode,
           fmt::format("{:.2f} ms; {}", 1e3 * times[2].cpu, note), report);
  AddRatio("wire.class.decode_apply_vs_memcpy" + suffix, times[1].cpu / times[3].cpu, bars.apply,
           fmt::format("{:.2f} ms; with digest, checks and undo log", 1e3 * times[3].cpu), report);
  if (sparse) {
    AddRatio("wire.step.decode_apply_vs_class" + suffix, times[3].cpu / times[5].cpu, 2,
             fmt::format("{:.2f} ms", 1e3 * times[5].cpu), report);
  }
  return {};
}

Status AddThreads(const Settings& settings, Report& report) {
  const WireModel model(settings.elements, kMid.lr, Parallel(settings.threads));
  DELTAWIRE_ASSIGN(const auto one, WireCoding::Make(model, codec::Coding::kClass, Parallel(1)));
  DELTAWIRE_ASSIGN(const auto two, WireCoding::Make(model, codec::Coding::kClass, Parallel(2)));
  Race race;
  const auto both = [](WireCoding& wire) -> Status {
    DELTAWIRE_TRY(wire.Encode());
    return wire.Apply();
  };
  const auto nothing = [] { return Status(); };
  const auto times =
      BestOf(settings.rounds,
             {race.Run([&] { return both(*one); }), race.Run(nothing, [&] { return one->Undo(); }),
              race.Run([&] { return both(*two); }), race.Run(nothing, [&] { return two->Undo(); })});
  DELTAWIRE_TRY(race.status());
  AddRatio("wire.threads", times[0].wall / times[2].wall, 1.7,
           fmt::format("encode, decode, apply of .mid: {:.2f} ms on one thread, {:.2f} ms on two, wall clock",
                       1e3 * times[0].wall, 1e3 * times[2].wall),
           report);
  return {};
}

Status AddDigest(const Settings& settings, Report& report) {
  const TensorView tensor = AllocateTensor(Dtype::kBf16, {settings.elements});
  std::memset(static_cast<uint8_t*>(tensor.memory->handle()) + tensor.offset_bytes, 1, 2 * settings.elements);
  const device::Backends backends = device::HostBackends();
  const ReadFloor read({BytesOf(tensor)}, Parallel(1));
  const Contender digest{[&] {
    uint64_t lanes[2] = {0, 0};
    for (uint64_t at = 0; at < settings.elements; at += kMaxBlockElements) {
      const auto count = static_cast<uint32_t>(std::min(kMaxBlockElements, settings.elements - at));
      const kernels::Source from{BytesOf(tensor).data(), 2 * at};
      backends.host->digest(from, kernels::Cast::kBits16, count, 2 * at, 1, lanes);
    }
  }};
  const auto times = BestOf(settings.rounds, {{[&] { read.Run(); }}, digest});
  AddRatio("wire.digest.full_vs_read", times[0].cpu / times[1].cpu, 0.75,
           fmt::format("{:.1f} GB/s", 2e-9 * static_cast<double>(settings.elements) / times[1].cpu), report);
  return {};
}

}  // namespace

Status AddWireFigures(const Settings& settings, Report& report) {
  for (const Bars& bars : kBars) DELTAWIRE_TRY(AddDensity(settings, bars, report));
  DELTAWIRE_TRY(AddDigest(settings, report));
  return AddThreads(settings, report);
}

}  // namespace deltawire::bench
