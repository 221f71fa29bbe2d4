// How a run begins (version 0) and how it goes on after a restart.
#include <numeric>

#include "pubsub/publisher_collected.h"
#include "sync/catalog.h"

namespace deltawire::pubsub {

Result<Publisher::Collected> Publisher::CompareWithBase() {
  DELTAWIRE_ASSIGN(const Checkpoint base, Checkpoint::Open(options_.base));
  std::vector<format::TensorSpec> specs = base.Specs();
  DELTAWIRE_TRY(
      format::CompareTensors(inventory_, specs, "base " + base.path(), format::ExtraTensors::kRefuse));
  std::vector<std::vector<const TensorView*>> views(inventory_.tensors.size());
  for (uint32_t i = 0; i < inventory_.tensors.size(); ++i) {
    const auto& tensor = inventory_.tensors[i];
    if (const TensorView* view = base.Find(tensor.name)) views[i].push_back(view);
    for (const std::string& alias : tensor.aliases) {
      if (const TensorView* view = base.Find(alias)) views[i].push_back(view);
    }
  }

  std::vector<std::vector<BlockChange>> changes(watch_->size());
  std::vector<std::vector<Digest>> before(watch_->size());
  for (uint32_t i = 0; i < watch_->size(); ++i) {
    changes[i].resize(grid_.boxes(i).size());
    before[i].resize(changes[i].size());
  }
  DELTAWIRE_TRY(
      watch_->ForEachBlock([&](detect::TensorWatch& watch, uint32_t tensor, uint32_t block) -> Status {
        const Box& box = grid_.boxes(tensor)[block];
        const auto cast = device::CastOfWidth(DtypeBytes(watch.served()));
        const uint64_t key = DigestKey(watch.name());
        Bytes served(ElementCount(box) * DtypeBytes(watch.served()));
        watch.ReadBlock(block, served);
        const auto wanted = BorrowHost(served.data(), served.size());
        for (const TensorView* view : views[tensor]) {
          const device::Block at(options_.backends, *view, box, cast, key);
          const Digest digest = at.DigestNow();
          if (view != views[tensor].front()) {
            if (digest == before[tensor][block]) continue;
            return Fail(Code::kMismatch, "{} stores this tied weight more than once, and the copies differ",
                        base.path());
          }
          before[tensor][block] = digest;
          BlockChange& change = changes[tensor][block];
          // Compare's "old" is what the trainer serves: the lists come out the other way round.
          at.Compare(*wanted, 0, change.changed, change.new_bits, change.old_bits);
        }
        return {};
      }));

  Collected out;
  Digest base_digest;
  for (uint32_t i = 0; i < watch_->size(); ++i) {
    delta::ChangedTensor tensor{i, {}, {}};
    for (uint32_t b = 0; b < changes[i].size(); ++b) {
      base_digest += before[i][b];
      tensor.after += (*watch_)[i].PublishedDigest(b);
      if (!changes[i][b].empty())
        tensor.blocks.push_back({b, std::move(changes[i][b]), (*watch_)[i].PublishedDigest(b)});
    }
    out.digest += tensor.after;
    out.Add(std::move(tensor), grid_);
  }
  out.base_digest = base_digest;
  return out;
}

Result<Version> Publisher::PublishZero() {
  DELTAWIRE_TRY(writer_->PutInventory(inventory_));
  if (!options_.base.empty()) {
    DELTAWIRE_ASSIGN(const Collected collected, CompareWithBase());
    const format::BaseRef base{.kind = format::BaseRef::Kind::kCheckpoint,
                               .number = 0,
                               .manifest = {},
                               .digest = collected.base_digest};
    DELTAWIRE_ASSIGN(const auto updates, Encode(collected, base, 0));
    return Upload(MakeManifest(collected, base), updates, AnchorDue(0));
  }
  Collected whole;
  for (uint32_t i = 0; i < watch_->size(); ++i) whole.Add({i, {}, {}}, grid_);
  const std::vector<Digest> digests = TensorDigests();
  whole.digest = std::accumulate(digests.begin(), digests.end(), Digest{});
  return Upload(MakeManifest(whole, {}), {}, true);
}

Result<std::optional<sync::VersionRecord>> Publisher::FindVersion(const Digest& digest) {
  sync::Catalog catalog(options_.store, writer_->run());
  DELTAWIRE_ASSIGN(const auto versions, catalog.Versions());
  for (auto number = versions.rbegin(); number != versions.rend(); ++number) {
    DELTAWIRE_ASSIGN(auto record, catalog.Load(*number));
    if (record.manifest.digest == digest && !record.manifest.alias_of) return record;
  }
  return std::nullopt;
}

Result<Version> Publisher::PublishResumed() {
  const sync::VersionRecord newest = *writer_->newest();
  if (newest.manifest.inventory != inventory_hash_) {
    sync::Catalog catalog(options_.store, writer_->run());
    DELTAWIRE_ASSIGN(const auto expected, catalog.LoadInventory(newest.manifest.inventory));
    DELTAWIRE_TRY(format::CompareInventories(*expected, inventory_, "the resuming trainer"));
    return Fail(Code::kMismatch, "the trainer's inventory {} is not the run's {}", inventory_hash_,
                newest.manifest.inventory);
  }
  // Once more, in case the store lost it: no receiver can join without it.
  DELTAWIRE_TRY(writer_->PutInventory(inventory_));
  Collected whole;
  for (uint32_t i = 0; i < watch_->size(); ++i) whole.Add({i, {}, {}}, grid_);
  const std::vector<Digest> digests = TensorDigests();
  whole.digest = std::accumulate(digests.begin(), digests.end(), Digest{});
  if (options_.continuity && options_.continuity->digest != whole.digest) {
    return Fail(Code::kMismatch,
                "the trainer serves state {}, but the saved state of run {} at version {} had {}: other "
                "weights would go "
                "out on this run's stream; load the checkpoint that the state was saved with",
                whole.digest.Hex(), options_.continuity->run, options_.continuity->number,
                options_.continuity->digest.Hex());
  }
  if (options_.continuity && options_.continuity->number > newest.number()) {
    return Fail(Code::kMismatch,
                "the saved state is of version {}, but the store's newest is {}: versions were lost",
                options_.continuity->number, newest.number());
  }
  DELTAWIRE_ASSIGN(const auto same, FindVersion(whole.digest));
  format::Manifest manifest = MakeManifest(whole, {});
  std::string note;
  if (same) {
    manifest.alias_of = same->number();
    manifest.base = {.kind = format::BaseRef::Kind::kVersion,
                     .number = same->number(),
                     .manifest = same->sha256,
                     .digest = same->manifest.digest};
    note = fmt::format("resumed at the bits of version {}", same->number());
  } else {
    note = "resumed at bits that no version has; a full checkpoint was written";
  }
  options_.log->Log(LogLevel::kInfo, note);
  DELTAWIRE_ASSIGN(Version version, Upload(manifest, {}, !same.has_value()));
  version.notes.push_back(note);
  return version;
}

}  // namespace deltawire::pubsub
