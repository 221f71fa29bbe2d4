// Publisher::Audit: the newest version rebuilt from the store, as a receiver would, against the live bits.
#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>

#include "delta/decode.h"
#include "pubsub/anchor_io.h"
#include "pubsub/publisher.h"
#include "sync/catalog.h"

namespace deltawire::pubsub {
namespace {

// Bits of a block in what the path starts from.
using ReadStart = std::function<Status(uint32_t tensor, const Box& box, MutableByteSpan bits)>;

// One update of a path with the bytes that it points into.
struct Replayed {
  // Where a grid block is in it: update.blocks[block].members[member].
  struct Entry {
    std::pair<uint32_t, uint32_t> place;  // tensor, block of its grid
    size_t block;
    size_t member;
  };
  Bytes file;
  delta::DecodedUpdate update;
  std::vector<Entry> entries;  // ascending by place

  void Index() {
    for (size_t b = 0; b < update.blocks.size(); ++b) {
      const auto& members = update.blocks[b].members;
      for (size_t m = 0; m < members.size(); ++m) {
        entries.push_back({{members[m].tensor, members[m].block}, b, m});
      }
    }
    std::sort(entries.begin(), entries.end(), [](const auto& x, const auto& y) { return x.place < y.place; });
  }

  // bits: a grid block before this update; after this, behind it. A joint class block has been placed.
  Status Apply(uint32_t tensor, uint32_t block, MutableByteSpan bits) const {
    const auto found =
        std::lower_bound(entries.begin(), entries.end(), std::pair(tensor, block),
                         [](const Entry& entry, const auto& place) { return entry.place < place; });
    if (found == entries.end() || found->place != std::pair(tensor, block)) return {};
    const delta::DecodedBlock& decoded = update.blocks[found->block];
    if (decoded.dense) {
      std::copy(decoded.dense_bits.begin(), decoded.dense_bits.end(), bits.begin());
      return {};
    }
    codec::Decoded changes;
    if (decoded.changes.ranked) {
      DELTAWIRE_ASSIGN(changes, codec::Place(kernels::RefClassTable(), bits, {}, decoded.changes));
    } else {
      changes = delta::ChangesOf(decoded.members[found->member], decoded.changes);
    }
    const auto at = [&](const std::vector<uint32_t>& positions, MutableByteSpan values, bool write) {
      for (size_t i = 0; i < positions.size(); ++i) {
        uint8_t* element = bits.data() + uint64_t{positions[i]} * changes.width;
        uint8_t* value = values.data() + i * changes.width;
        std::memcpy(write ? element : value, write ? value : element, changes.width);
      }
    };
    Bytes old_changed(changes.changed.size() * changes.width);
    Bytes old_uncertain(changes.uncertain.size() * changes.width);
    at(changes.changed, old_changed, false);
    at(changes.uncertain, old_uncertain, false);
    Bytes new_changed(old_changed.size());
    Bytes new_uncertain(old_uncertain.size());
    codec::Resolve(changes, old_changed, old_uncertain, new_changed, new_uncertain);
    at(changes.changed, new_changed, true);
    at(changes.uncertain, new_uncertain, true);
    return {};
  }
};

// The patches of a path.
struct Replay {
  std::optional<AnchorReader> anchor;
  std::vector<Replayed> updates;

  // bits: the block in what the path starts from; after this, of the version before updates[count].
  Status Apply(uint32_t tensor, uint32_t block, MutableByteSpan bits, size_t count) const {
    for (size_t i = 0; i < count; ++i) DELTAWIRE_TRY(updates[i].Apply(tensor, block, bits));
    return {};
  }

  // A joint class block needs all its tensors at once, which a pass over blocks does not have: those are
  // turned into positions first, update by update, each in the base that the ones before it make.
  Status PlaceJoint(const ReadStart& read, const delta::GridIndex& grid, const Parallel& parallel) {
    for (size_t i = 0; i < updates.size(); ++i) {
      auto& blocks = updates[i].update.blocks;
      std::vector<Status> statuses(blocks.size());
      parallel.For(blocks.size(), [&](uint64_t b) {
        if (blocks[b].changes.ranked && blocks[b].members.size() > 1) {
          statuses[b] = PlaceOne(blocks[b], i, read, grid);
        }
      });
      for (Status& status : statuses) DELTAWIRE_TRY(std::move(status));
    }
    return {};
  }

 private:
  Status PlaceOne(delta::DecodedBlock& block, size_t count, const ReadStart& read,
                  const delta::GridIndex& grid) const {
    std::vector<Bytes> bits;
    std::vector<ByteSpan> base;
    for (const delta::BlockMember& member : block.members) {
      bits.emplace_back(uint64_t{member.elements} * block.changes.width);
      DELTAWIRE_TRY(read(member.tensor, grid.boxes(member.tensor)[member.block], bits.back()));
      DELTAWIRE_TRY(Apply(member.tensor, member.block, bits.back(), count));
      base.emplace_back(bits.back());
    }
    DELTAWIRE_ASSIGN(block.changes, codec::Place(kernels::RefClassTable(), base, {}, block.changes));
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
      Replayed& replayed = replay.updates.emplace_back();
      DELTAWIRE_ASSIGN(replayed.file, catalog.ReadPart(step.record.manifest, i));
      DELTAWIRE_ASSIGN(replayed.update,
                       delta::DecodeUpdate(replayed.file, inventory_, grid_, options_.parallel));
      replayed.Index();
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
  const auto read_start = [&](uint32_t tensor, const Box& box, MutableByteSpan bits) -> Status {
    if (!base) return replay.anchor->ReadBox(tensor, box, bits);
    const auto& spec = inventory_.tensors[tensor];
    const TensorView* view = base->Find(spec.name);
    for (size_t i = 0; view == nullptr && i < spec.aliases.size(); ++i) view = base->Find(spec.aliases[i]);
    device::Block(options_.backends, *view, box, device::CastOfWidth(DtypeBytes(spec.dtype)), 0).Read(bits);
    return {};
  };
  DELTAWIRE_TRY(replay.PlaceJoint(read_start, grid_, options_.parallel));
  const auto compare = [&](detect::TensorWatch& watch, uint32_t tensor, uint32_t block) -> Status {
    const Box& box = watch.boxes()[block];
    const uint32_t width = DtypeBytes(watch.served());
    const auto cast = device::CastOfWidth(width);
    const uint64_t key = DigestKey(watch.name());
    Bytes rebuilt(ElementCount(box) * width);
    DELTAWIRE_TRY(read_start(tensor, box, rebuilt));
    const Digest start =
        base ? device::Block(options_.backends, watch.live(), box, cast, key).DigestOf(rebuilt) : Digest{};
    DELTAWIRE_TRY(replay.Apply(tensor, block, rebuilt, replay.updates.size()));
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
