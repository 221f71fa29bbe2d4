// Publisher::Audit: the newest version rebuilt from the store, as a receiver would, against the live bits.
#include <algorithm>
#include <mutex>

#include "delta/decode.h"
#include "pubsub/anchor_io.h"
#include "pubsub/publisher.h"
#include "sync/catalog.h"

namespace deltawire::pubsub {
namespace {

// The patches of a path, decoded; bytes outlive what points into them.
struct Replay {
  std::optional<AnchorReader> anchor;
  std::vector<Bytes> files;
  std::vector<delta::DecodedUpdate> updates;

  // bits: the block before the patches; after this, of the newest version.
  Status Apply(uint32_t tensor, uint32_t block, uint32_t width, MutableByteSpan bits) const {
    for (const auto& update : updates) {
      const auto found = std::lower_bound(
          update.blocks.begin(), update.blocks.end(), std::pair(tensor, block),
          [](const auto& entry, const auto& place) { return std::pair(entry.tensor, entry.block) < place; });
      if (found == update.blocks.end() || found->tensor != tensor || found->block != block) continue;
      if (found->dense) {
        std::copy(found->dense_bits.begin(), found->dense_bits.end(), bits.begin());
        continue;
      }
      DELTAWIRE_ASSIGN(const codec::Decoded changes,
                       codec::Place(kernels::RefClassTable(), bits, {}, found->changes));
      const auto at = [&](const std::vector<uint32_t>& positions, MutableByteSpan values, bool write) {
        for (size_t i = 0; i < positions.size(); ++i) {
          uint8_t* element = bits.data() + uint64_t{positions[i]} * width;
          uint8_t* value = values.data() + i * width;
          std::memcpy(write ? element : value, write ? value : element, width);
        }
      };
      Bytes old_changed(changes.changed.size() * width);
      Bytes old_uncertain(changes.uncertain.size() * width);
      at(changes.changed, old_changed, false);
      at(changes.uncertain, old_uncertain, false);
      Bytes new_changed(old_changed.size());
      Bytes new_uncertain(old_uncertain.size());
      codec::Resolve(changes, old_changed, old_uncertain, new_changed, new_uncertain);
      at(changes.changed, new_changed, true);
      at(changes.uncertain, new_uncertain, true);
    }
    return {};
  }
};

}  // namespace

Result<AuditReport> Publisher::Audit() {
  DELTAWIRE_TRY(Flush());
  sync::Catalog catalog(options_.store, writer_->run());
  const sync::VersionRecord& newest = *writer_->newest();
  // From nothing if an anchor allows it, else from the checkpoint that the run was based on.
  auto path = catalog.Plan({.position = {}, .target = newest.number(), .codings = {}});
  std::optional<Checkpoint> base;
  Digest base_digest;
  if (!path && !options_.base.empty()) {
    DELTAWIRE_ASSIGN(const auto zero, catalog.Load(0));
    base_digest = zero.manifest.base.digest;
    DELTAWIRE_ASSIGN(base, Checkpoint::Open(options_.base));
    DELTAWIRE_TRY(format::CompareTensors(inventory_, base->Specs(), "base " + options_.base,
                                         format::ExtraTensors::kRefuse));
    path = catalog.Plan(
        {.position = {std::nullopt, zero.manifest.base.digest}, .target = newest.number(), .codings = {}});
  }
  if (!path) {
    return Fail(
        path.error().Within("the audit needs an anchor, or the base that the publisher was opened with"));
  }

  Replay replay;
  for (const sync::Step& step : path->steps) {
    if (step.kind == sync::Step::Kind::kAnchor) {
      DELTAWIRE_ASSIGN(replay.anchor, AnchorReader::Open(catalog.store(), *step.anchor, inventory_));
      continue;
    }
    const auto& parts = step.record.manifest.parts;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].coding != step.coding) continue;
      DELTAWIRE_ASSIGN(Bytes file, catalog.ReadPart(step.record.manifest, i));
      replay.files.push_back(std::move(file));
      DELTAWIRE_ASSIGN(auto update,
                       delta::DecodeUpdate(replay.files.back(), inventory_, grid_, options_.parallel));
      replay.updates.push_back(std::move(update));
    }
  }

  // The reference kernels, where the memory is the host's: another implementation than the one that detected.
  device::Backends reference = options_.backends;
  reference.host = &kernels::RefTable();
  reference.host_ops = &kernels::RefHostTable();
  AuditReport report;
  report.number = newest.number();
  report.tensors = inventory_.tensors.size();
  std::mutex mutex;
  Digest base_found;
  const auto compare = [&](detect::TensorWatch& watch, uint32_t tensor, uint32_t block) -> Status {
    const Box& box = watch.boxes()[block];
    const uint32_t width = DtypeBytes(watch.served());
    const auto cast = device::CastOfWidth(width);
    const uint64_t key = DigestKey(watch.name());
    Bytes rebuilt(ElementCount(box) * width);
    Digest start;
    if (base) {
      const auto& spec = inventory_.tensors[tensor];
      const TensorView* view = base->Find(spec.name);
      for (size_t i = 0; view == nullptr && i < spec.aliases.size(); ++i) view = base->Find(spec.aliases[i]);
      const device::Block stored(options_.backends, *view, box, cast, key);
      stored.Read(rebuilt);
      start = stored.DigestOf(rebuilt);
    } else {
      DELTAWIRE_TRY(replay.anchor->ReadBox(tensor, box, rebuilt));
    }
    DELTAWIRE_TRY(replay.Apply(tensor, block, width, rebuilt));
    const Digest digest = device::Block(reference, watch.live(), box, cast, key).DigestOf(rebuilt);
    Bytes live(rebuilt.size());
    watch.ReadBlock(block, live);
    const bool unmoved = watch.Recompute(block) == watch.PublishedDigest(block);
    uint64_t different = 0;
    for (uint64_t at = 0; unmoved && at < live.size(); at += width) {
      different += std::memcmp(live.data() + at, rebuilt.data() + at, width) != 0 ? 1 : 0;
    }
    const std::lock_guard lock(mutex);
    base_found += start;
    report.elements += live.size() / width;
    report.compared += unmoved ? live.size() / width : 0;
    report.different += different;
    if (different != 0 || digest != watch.PublishedDigest(block)) {
      ++report.blocks_wrong;
      if (report.first_wrong.size() < 10) report.first_wrong.push_back(watch.name() + " " + BoxText(box));
    }
    return {};
  };
  DELTAWIRE_TRY(watch_->ForEachBlock(compare));
  if (base && base_found != base_digest) {
    return Fail(Code::kWrongBase,
                "the base {} no longer holds what version 0 started from (state {}, not {}), perhaps because "
                "an engine "
                "follows the run in that folder; audit after anchor(), or give the base back",
                options_.base, base_found.Hex(), base_digest.Hex());
  }
  return report;
}

}  // namespace deltawire::pubsub
