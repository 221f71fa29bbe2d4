#include <cstring>

#include "bench/changed_model.h"
#include "bench/figures.h"
#include "bench/floors.h"
#include "bench/timing.h"

namespace deltawire::bench {
namespace {

// One changed block as flat arrays, with room for what an apply makes of it.
struct Part {
  uint64_t key;
  uint64_t canonical;  // byte of the block's first element
  uint16_t* live;
  const delta::ChangedBlock* block;
  std::vector<uint16_t> undo;

  uint32_t count() const { return static_cast<uint32_t>(block->change.changed.size()); }
  const uint32_t* positions() const { return block->change.changed.data(); }
};

std::vector<Part> MakeParts(const ChangedModel& model) {
  std::vector<Part> parts;
  for (const auto& tensor : model.changes()) {
    const uint16_t* first = model.BlockBits(tensor.tensor, 0);
    for (const auto& block : tensor.blocks) {
      uint16_t* live = model.BlockBits(tensor.tensor, block.block);
      parts.push_back({DigestKey(model.inventory().tensors[tensor.tensor].name),
                       static_cast<uint64_t>(live - first) * 2, live, &block,
                       std::vector<uint16_t>(block.change.changed.size())});
    }
  }
  return parts;
}

// Larger than any second-level cache and most of the third: what one contender touched is not warm for the
// next.
class ColdCache {
 public:
  ColdCache() : bytes_(uint64_t{64} << 20) {}
  void operator()() { std::memset(bytes_.data(), ++value_, bytes_.size()); }

 private:
  Bytes bytes_;
  uint8_t value_ = 0;
};

Status AddApply(const Settings& settings, const ChangedModel& model, const delta::DecodedUpdate& update,
                Report& report) {
  std::vector<Part> parts = MakeParts(model);
  std::vector<ScatterFloor::Part> raw;
  for (const Part& part : parts) {
    // The old bits: the live tensors stay what they are.
    raw.push_back({part.live,
                   {part.positions(), part.count()},
                   reinterpret_cast<const uint16_t*>(part.block->change.old_bits.data())});
  }
  std::vector<delta::ReplicaTensor> targets;
  for (const TensorView& view : model.views()) targets.push_back({{view}});
  const kernels::Table& table = *model.backends().host;
  const kernels::HostTable& ops = *model.backends().host_ops;
  ColdCache cold;

  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    const Parallel parallel(threads);
    const ScatterFloor scatter(raw, parallel);
    DELTAWIRE_ASSIGN(auto replica, delta::Replica::Attach(model.backends(), model.inventory(), model.grid(),
                                                          targets, parallel));
    Status status;
    const auto keep = [&status](Status next) {
      if (status) status = std::move(next);
    };
    const auto undo = [&] {
      if (replica.can_undo()) keep(replica.Undo());
      cold();
    };
    const Contender kernels_only{[&] {
                                   parallel.For(parts.size(), [&](uint64_t i) {
                                     Part& part = parts[i];
                                     uint64_t lanes[2] = {0, 0};
                                     table.gather({part.live, 0}, kernels::Cast::kBits16, part.positions(),
                                                  part.count(), part.undo.data());
                                     ops.digest_changes(part.key, part.canonical, 2, part.positions(),
                                                        part.count(), part.undo.data(),
                                                        part.block->change.new_bits.data(), lanes);
                                     table.scatter({part.live, 0}, 2, part.positions(), part.count(),
                                                   part.block->change.new_bits.data());
                                   });
                                 },
                                 [&] {
                                   for (const Part& part : parts) {
                                     table.scatter({part.live, 0}, 2, part.positions(), part.count(),
                                                   part.block->change.old_bits.data());
                                   }
                                   cold();
                                 }};
    // The kernels' writes are taken back before the replica looks again.
    const Contender restore{[] {}, kernels_only.reset};
    const auto times = BestOf(settings.rounds, {{[&] { scatter.Run(); }, cold},
                                                kernels_only,
                                                restore,
                                                {[&] { keep(replica.Stage(update)); }, undo},
                                                {[&] { keep(replica.Commit()); }, cold},
                                                {[&] {
                                                   keep(replica.Stage(update));
                                                   keep(replica.Commit());
                                                 },
                                                 undo}});
    undo();
    DELTAWIRE_TRY(status);

    const double each = 1e9 / static_cast<double>(model.changed());
    const double floor = times[0].Of(threads) * each;
    const auto add = [&](const std::string& name, size_t i, std::optional<double> max_ratio,
                         std::string note) {
      report.Add({.name = name + suffix,
                  .value = times[i].Of(threads) * each,
                  .unit = "ns/change",
                  .floor = floor,
                  .max_ratio = max_ratio,
                  .note = std::move(note)});
    };
    add("delta.apply", 5, 2.5,
        "Replica: stage (gather, resolve, prove, undo log) and commit, update already decoded");
    add("delta.stage", 3, std::nullopt, "beside serving");
    add("delta.commit", 4, std::nullopt, "the pause");
    add("delta.apply_kernels", 1, std::nullopt, "gather, digest and scatter alone, block by block");
    return {};
  });
}

Status AddDigestUpdate(const Settings& settings, const ChangedModel& model, Report& report) {
  const std::vector<Part> parts = MakeParts(model);
  // One copy of all change arrays, so that the floor is a plain read of the same bytes.
  Bytes arrays(model.changed() * 8 / 1024 * 1024);
  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    const Parallel parallel(threads);
    const ReadFloor read({arrays}, parallel);
    std::vector<Digest> sums(parts.size());
    const auto times = BestOf(settings.rounds, {{[&] { read.Run(); }}, {[&] {
                                                  parallel.For(parts.size(), [&](uint64_t i) {
                                                    const Part& part = parts[i];
                                                    sums[i] = {};
                                                    model.backends().host_ops->digest_changes(
                                                        part.key, part.canonical, 2, part.positions(),
                                                        part.count(), part.block->change.old_bits.data(),
                                                        part.block->change.new_bits.data(), sums[i].lanes);
                                                  });
                                                }}});
    const double each = 1e9 / static_cast<double>(model.changed());
    report.Add(
        {.name = "delta.digest_update" + suffix,
         .value = times[1].Of(threads) * each,
         .unit = "ns/change",
         .floor = times[0].Of(threads) * each,
         .max_value = 5,
         .note = fmt::format("{} changes; floor: reading position, old and new bits", model.changed())});
    return {};
  });
}

// Encoding and decoding of the whole update, containers and hashes and the encoder's self-check with them.
Status AddCoding(const Settings& settings, const ChangedModel& model, ByteSpan file, Report& report) {
  return ForEachWidth(settings, [&](int threads, const std::string& suffix) -> Status {
    const Parallel parallel(threads);
    Status status;
    uint64_t size = 0;
    const Contender encode{[&] {
      const auto update =
          delta::EncodeUpdate(model.header(), model.inventory(), model.grid(), model.changes(), {}, parallel);
      if (update) {
        size = update->size_bytes();
      } else {
        status = Fail(update.error());
      }
    }};
    const Contender decode{[&] {
      const auto update = delta::DecodeUpdate(file, model.inventory(), model.grid(), parallel);
      if (!update) status = Fail(update.error());
    }};
    Bytes copy(model.changed() * 8);
    const Bytes source(copy.size(), 1);
    const Contender memcpy_changes{[&] { std::memcpy(copy.data(), source.data(), copy.size()); }};
    const auto times = BestOf(settings.rounds, {memcpy_changes, encode, decode});
    DELTAWIRE_TRY(status);
    const double each = 1e9 / static_cast<double>(model.changed());
    const double floor = times[0].Of(threads) * each;
    report.Add({.name = "codec.encode" + suffix,
                .value = times[1].Of(threads) * each,
                .unit = "ns/change",
                .floor = floor,
                .note = fmt::format(
                    "step; {:.3f} B/change; with survey, self-check, hashes, container; floor: memcpy "
                    "of position, old and new bits",
                    static_cast<double>(size) / static_cast<double>(model.changed()))});
    report.Add({.name = "codec.decode" + suffix,
                .value = times[2].Of(threads) * each,
                .unit = "ns/change",
                .floor = floor,
                .note = "with container and every hash"});
    return {};
  });
}

}  // namespace

Status AddDeltaFigures(const Settings& settings, Report& report) {
  const Parallel parallel(settings.threads);
  const ChangedModel model(settings.elements, parallel);
  DELTAWIRE_ASSIGN(const auto encoded, delta::EncodeUpdate(model.header(), model.inventory(), model.grid(),
                                                           model.changes(), {}, parallel));
  const Bytes file = encoded.Join();
  DELTAWIRE_ASSIGN(const auto update, delta::DecodeUpdate(file, model.inventory(), model.grid(), parallel));
  DELTAWIRE_TRY(AddDigestUpdate(settings, model, report));
  DELTAWIRE_TRY(AddApply(settings, model, update, report));
  return AddCoding(settings, model, file, report);
}

}  // namespace deltawire::bench
