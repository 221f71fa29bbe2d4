#include "delta/replica.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "delta/value_check.h"

namespace deltawire::delta {
namespace {

// A staged dense block holds width bytes an element twice; a sparse one 4 + 2 width. Beyond this share of
// changed elements the dense form is the smaller one for the widths in use.
constexpr uint64_t kDenseShare = 3;

}  // namespace

Replica::Replica(const device::Backends& backends, const format::Inventory& inventory, const GridIndex& grid,
                 std::vector<ReplicaTensor> tensors, const Parallel& parallel)
    : backends_(&backends),
      inventory_(&inventory),
      grid_(&grid),
      tensors_(std::move(tensors)),
      parallel_(parallel),
      blocks_(grid.tensors()) {
  for (uint32_t i = 0; i < grid.tensors(); ++i) {
    keys_.push_back(DigestKey(inventory.tensors[i].name));
    blocks_[i].resize(grid.boxes(i).size());
  }
}

Result<Replica> Replica::Attach(const device::Backends& backends, const format::Inventory& inventory,
                                const GridIndex& grid, std::vector<ReplicaTensor> tensors,
                                const Parallel& parallel) {
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const auto& expected = inventory.tensors[i];
    if (tensors[i].views.empty()) {
      return Fail(Code::kMismatch, "tensor {}: the receiver has none", expected.name);
    }
    for (const TensorView& view : tensors[i].views) {
      DELTAWIRE_TRY(CheckInside(view, expected.name));
      DELTAWIRE_TRY(CheckWritable(view, expected.name));
      if (view.dtype != expected.dtype || view.shape != expected.shape) {
        return Fail(Code::kMismatch,
                    "tensor {}: the receiver holds {} {}, the run serves {} {}; load the model in the served "
                    "dtype and "
                    "shape",
                    expected.name, DtypeName(view.dtype), ShapeText(view.shape), DtypeName(expected.dtype),
                    ShapeText(expected.shape));
      }
    }
  }
  Replica replica(backends, inventory, grid, std::move(tensors), parallel);
  const auto& places = grid.places();
  std::vector<uint8_t> differ(places.size(), 0);
  parallel.For(places.size(), [&](uint64_t i) {
    const auto [tensor, block] = places[i];
    const size_t views = replica.tensors_[tensor].views.size();
    const Digest first = replica.At(tensor, block, 0).DigestNow();
    for (size_t view = 1; view < views; ++view) {
      if (replica.At(tensor, block, view).DigestNow() != first) differ[i] = 1;
    }
    replica.blocks_[tensor][block] = first;
  });
  DELTAWIRE_TRY(replica.CheckMemory());
  for (size_t i = 0; i < places.size(); ++i) {
    if (differ[i]) {
      return Fail(
          Code::kMismatch,
          "{}: the receiver keeps {} copies of this tied weight and they differ; load the checkpoint again",
          replica.Where(places[i].tensor, places[i].block), replica.tensors_[places[i].tensor].views.size());
    }
    replica.live_ += replica.blocks_[places[i].tensor][places[i].block];
  }
  replica.staged_digest_ = replica.live_;
  return replica;
}

device::Block Replica::At(uint32_t tensor, uint32_t block, size_t view) const {
  return {*backends_, tensors_[tensor].views[view], grid_->boxes(tensor)[block],
          device::CastOfWidth(DtypeBytes(inventory_->tensors[tensor].dtype)), keys_[tensor]};
}

std::string Replica::Where(uint32_t tensor, uint32_t block) const {
  return fmt::format("tensor {}, block {}", inventory_->tensors[tensor].name,
                     BoxText(grid_->boxes(tensor)[block]));
}

std::string Replica::Where(std::span<const BlockMember> members) const {
  return MembersText(members, *inventory_, *grid_);
}

std::string Replica::Damage(std::span<const BlockMember> members) const {
  std::vector<std::string> names;
  for (const BlockMember& member : members) {
    if (At(member.tensor, member.block, 0).DigestNow() == blocks_[member.tensor][member.block]) continue;
    names.push_back(Where({&member, 1}));
  }
  if (names.empty()) return "";
  return fmt::format(" (no longer as proved: {})", fmt::join(names, "; "));
}

Digest Replica::TensorDigest(uint32_t tensor) const {
  return std::accumulate(blocks_[tensor].begin(), blocks_[tensor].end(), Digest{});
}

const StagedBlock* Replica::FindStaged(uint32_t tensor, uint32_t block) const {
  const auto found = staged_.find({tensor, block});
  return found == staged_.end() ? nullptr : &found->second;
}

uint64_t Replica::staged_elements() const {
  uint64_t count = 0;
  for (const auto& [place, staged] : staged_) {
    count += staged.dense ? ElementCount(grid_->boxes(place.first)[place.second]) : staged.positions.size();
  }
  return count;
}

Status Replica::CheckMemory() const {
  for (const ReplicaTensor& tensor : tensors_) {
    for (const TensorView& view : tensor.views) DELTAWIRE_TRY(view.memory->Check());
  }
  return {};
}

Status Replica::CheckCopies(uint32_t tensor, uint32_t block, std::span<const uint32_t> positions,
                            ByteSpan bits) const {
  for (size_t view = 1; view < tensors_[tensor].views.size(); ++view) {
    Bytes other(bits.size());
    At(tensor, block, view).Gather(positions, other);
    if (!std::equal(other.begin(), other.end(), bits.begin())) {
      return Fail(Code::kWrongBase,
                  "{}: the receiver's copies of this tied weight no longer agree; something else wrote to "
                  "one of them",
                  Where(tensor, block));
    }
  }
  return {};
}

bool Replica::AnyStaged(std::span<const BlockMember> members) const {
  return std::any_of(members.begin(), members.end(), [&](const BlockMember& member) {
    return FindStaged(member.tensor, member.block) != nullptr;
  });
}

Status Replica::ReadOld(std::span<const BlockMember> members, bool live_known, MemberBits& list) const {
  for (size_t i = 0; i < members.size(); ++i) {
    const auto [tensor, block, first, elements] = members[i];
    const MutableByteSpan live = list.Of(i, list.live);
    if (!live_known) At(tensor, block, 0).Gather(list.positions[i], live);
    DELTAWIRE_TRY(CheckCopies(tensor, block, list.positions[i], live));
  }
  if (!AnyStaged(members)) return {};
  list.staged = list.live;
  for (size_t i = 0; i < members.size(); ++i) {
    Overlay(FindStaged(members[i].tensor, members[i].block), list.positions[i], list.width,
            list.Of(i, list.staged));
  }
  return {};
}

Result<codec::Decoded> Replica::PlaceInBase(const DecodedBlock& decoded) const {
  const std::vector<BlockMember>& members = decoded.members;
  std::vector<ByteSpan> base;  // of each member
  std::vector<Bytes> copies;
  codec::Overlay above;
  std::vector<uint32_t> positions;
  Bytes bits;
  for (const BlockMember& member : members) {
    const StagedBlock* staged = FindStaged(member.tensor, member.block);
    if (staged != nullptr && staged->dense) {
      base.emplace_back(staged->new_bits);
      continue;
    }
    const device::Block at = At(member.tensor, member.block, 0);
    ByteSpan live = at.HostBits();
    if (live.empty()) {
      copies.emplace_back(uint64_t{at.elements()} * at.served_width());
      at.Read(copies.back());
      live = copies.back();
    }
    base.push_back(live);
    if (staged == nullptr) continue;
    if (members.size() == 1) {
      above = {staged->positions, staged->new_bits};
      continue;
    }
    for (const uint32_t position : staged->positions) positions.push_back(member.first + position);
    bits.insert(bits.end(), staged->new_bits.begin(), staged->new_bits.end());
  }
  if (members.size() > 1) above = {positions, bits};
  auto placed = codec::Place(*backends_->classes, base, above, decoded.changes);
  if (placed) return placed;
  return Fail(placed.error().code(), "{}: {}{}", Where(members), placed.error().message(), Damage(members));
}

Result<std::vector<StagedBlock>> Replica::StageSparse(const DecodedBlock& decoded) const {
  const std::vector<BlockMember>& members = decoded.members;
  std::optional<codec::Decoded> placed;
  if (decoded.changes.ranked) {
    DELTAWIRE_ASSIGN(placed, PlaceInBase(decoded));
  }
  const codec::Decoded& changes = placed ? *placed : decoded.changes;
  // Who placed the elements read their bits.
  const bool live_known = placed && !AnyStaged(members);
  MemberBits changed = placed ? MemberBits(members, std::move(placed->changed), changes.width,
                                           live_known ? std::move(placed->base_bits) : Bytes())
                              : MemberBits(members, changes.changed, changes.width);
  MemberBits uncertain(members, changes.uncertain, changes.width);
  DELTAWIRE_TRY(ReadOld(members, live_known, changed));
  DELTAWIRE_TRY(ReadOld(members, false, uncertain));
  Bytes new_changed(changed.live.size());
  Bytes new_uncertain(uncertain.live.size());
  codec::Resolve(changes, changed.base(), uncertain.base(), new_changed, new_uncertain);
  if (decoded.value_check &&
      *decoded.value_check != ValueCheck(new_changed, new_uncertain, changes.populations)) {
    return Fail(
        Code::kWrongBase,
        "{}: the update's bytes are intact and start from this receiver's version, but lead to other values "
        "than the publisher has: some elements no longer hold that version's bits; verify, and recover "
        "through "
        "an anchor{}",
        Where(members), Damage(members));
  }

  std::vector<StagedBlock> out;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto [tensor, block, first, elements] = members[i];
    const device::Block at = At(tensor, block, 0);
    const StagedBlock* staged = FindStaged(tensor, block);
    const Digest change =
        at.DigestOfChange(changed.positions[i], changed.Of(i, changed.base()), changed.Of(i, new_changed)) +
        at.DigestOfChange(uncertain.positions[i], uncertain.Of(i, uncertain.base()),
                          uncertain.Of(i, new_uncertain));
    StagedBlock merged = MergeStaged(staged, std::move(changed.positions[i]), changed.Take(i, changed.live),
                                     changed.Take(i, new_changed), changes.width);
    if (uncertain.Count(i) > 0) {
      merged = MergeStaged(&merged, std::move(uncertain.positions[i]), uncertain.Take(i, uncertain.live),
                           uncertain.Take(i, new_uncertain), changes.width);
    }
    merged.before = blocks_[tensor][block];
    merged.after = (staged ? staged->after : merged.before) + change;
    out.push_back(std::move(merged));
  }
  return out;
}

Result<StagedBlock> Replica::StageDense(uint32_t tensor, uint32_t block, MutableByteSpan bits) const {
  const device::Block at = At(tensor, block, 0);
  const Memory& live = *tensors_[tensor].views[0].memory;
  StagedBlock out;
  // The new bits as memory that the live tensor's device can compare with.
  std::shared_ptr<Memory> wanted = BorrowHost(bits.data(), bits.size());
  if (live.device() != DeviceKind::kHost) {
    DELTAWIRE_ASSIGN(wanted, live.AllocateLike(bits.size()));
    backends_->For(live).write({wanted->handle(), 0}, at.served_width(), at.elements(), bits.data());
  }
  at.Compare(*wanted, 0, out.positions, out.new_bits, out.old_bits);
  DELTAWIRE_TRY(CheckCopies(tensor, block, out.positions, out.old_bits));
  // From the bits themselves: right even where the live tensor no longer holds what was proved.
  out.after = at.DigestOf(bits);
  out.before = out.after - at.DigestOfChange(out.positions, out.old_bits, out.new_bits);
  if (out.positions.size() * kDenseShare > at.elements()) {
    out.dense = true;
    out.positions = {};
    out.new_bits.assign(bits.begin(), bits.end());
    out.old_bits.resize(bits.size());
    at.Read(out.old_bits);
  }
  return out;
}

Result<std::vector<StagedBlock>> Replica::StageBlock(const DecodedBlock& decoded) const {
  if (!decoded.dense) return StageSparse(decoded);
  const BlockMember& member = decoded.members.front();
  Bytes bits(decoded.dense_bits.begin(), decoded.dense_bits.end());
  std::vector<StagedBlock> staged;
  DELTAWIRE_ASSIGN(staged.emplace_back(), StageDense(member.tensor, member.block, bits));
  return staged;
}

Status Replica::Stage(const DecodedUpdate& update) {
  if (!format::StartsFrom(update.header, staged_digest_)) {
    return Fail(Code::kWrongBase,
                "update to version {} starts from state {}, the receiver holds {}; catch up from the catalog "
                "(update()) "
                "or load the base it names",
                update.header.number, update.header.base_digest->Hex(), staged_digest_.Hex());
  }
  std::vector<Result<std::vector<StagedBlock>>> results(update.blocks.size());
  parallel_.For(update.blocks.size(), [&](uint64_t i) { results[i] = StageBlock(update.blocks[i]); });
  DELTAWIRE_TRY(CheckMemory());

  Digest state = staged_digest_;
  for (size_t i = 0; i < results.size(); ++i) {
    const DecodedBlock& block = update.blocks[i];
    if (!results[i]) return Fail(std::move(results[i]).error());
    Digest after;
    for (size_t m = 0; m < block.members.size(); ++m) {
      const StagedBlock& result = (*results[i])[m];
      const StagedBlock* staged = FindStaged(block.members[m].tensor, block.members[m].block);
      after += result.after;
      state += result.after - (staged ? staged->after : result.before);
    }
    if (after != block.after) {
      return Fail(
          update.header.base_digest ? Code::kDetectorFault : Code::kWrongBase,
          "version {}, {}: the update's bytes are intact, but applying them gives digest {} where "
          "the publisher has {}: its detector or this receiver's memory is at fault{}; the old version "
          "is kept, recover through an anchor",
          update.header.number, Where(block.members), after.Hex(), block.after.Hex(), Damage(block.members));
    }
  }
  if (state != update.header.digest) {
    return Fail(update.header.base_digest ? Code::kDetectorFault : Code::kWrongBase,
                "version {}: every block of the update is right, but the whole state would be {} where the "
                "publisher has "
                "{}: an element outside the update differs (its detector or this receiver's memory is at "
                "fault); the old "
                "version is kept, recover through an anchor",
                update.header.number, state.Hex(), update.header.digest.Hex());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const std::vector<BlockMember>& members = update.blocks[i].members;
    for (size_t m = 0; m < members.size(); ++m) {
      staged_[{members[m].tensor, members[m].block}] = std::move((*results[i])[m]);
    }
  }
  staged_digest_ = state;
  return {};
}

Status Replica::StageFull(const ReadBlock& read, const std::vector<Digest>& expected) {
  const auto& places = grid_->places();
  std::vector<Result<StagedBlock>> results(places.size());
  parallel_.For(places.size(), [&](uint64_t i) {
    const auto [tensor, block] = places[i];
    Bytes bits(ElementCount(grid_->boxes(tensor)[block]) * DtypeBytes(inventory_->tensors[tensor].dtype));
    if (auto status = read(tensor, block, bits); !status) {
      results[i] = Fail(std::move(status).error());
      return;
    }
    results[i] = StageDense(tensor, block, bits);
  });
  DELTAWIRE_TRY(CheckMemory());
  std::vector<Digest> found(grid_->tensors());
  for (size_t i = 0; i < places.size(); ++i) {
    if (!results[i]) return Fail(std::move(results[i]).error());
    found[places[i].tensor] += results[i]->after;
  }
  for (uint32_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected[i]) continue;
    return Fail(Code::kCorrupt,
                "tensor {}: the full state's bits have digest {}, its table says {}; use another anchor",
                inventory_->tensors[i].name, found[i].Hex(), expected[i].Hex());
  }
  staged_.clear();
  for (size_t i = 0; i < places.size(); ++i) {
    const bool as_proved = results[i]->after == blocks_[places[i].tensor][places[i].block];
    if (!results[i]->dense && results[i]->positions.empty() && as_proved) continue;
    staged_[{places[i].tensor, places[i].block}] = *std::move(results[i]);
  }
  staged_digest_ = std::accumulate(found.begin(), found.end(), Digest{});
  return {};
}

void Replica::DiscardStaged() {
  staged_.clear();
  staged_digest_ = live_;
}

Status Replica::WriteAll(const StagedMap& changes, bool undo) {
  std::vector<StagedMap::const_iterator> items;
  for (auto it = changes.begin(); it != changes.end(); ++it) items.push_back(it);
  parallel_.For(items.size(), [&](uint64_t i) {
    const auto& [place, staged] = *items[i];
    const Bytes& bits = undo ? staged.old_bits : staged.new_bits;
    for (size_t view = 0; view < tensors_[place.first].views.size(); ++view) {
      const device::Block at = At(place.first, place.second, view);
      if (staged.dense) {
        at.Write(bits);
      } else {
        at.Scatter(staged.positions, bits);
      }
    }
  });
  if (auto status = CheckMemory(); !status) {
    return Fail(Code::kUnusable,
                "a device failed while weights were being written ({}); load the engine again",
                status.error().message());
  }
  for (const auto& [place, staged] : changes) {
    Digest& live = blocks_[place.first][place.second];
    live_ -= live;
    live = undo ? staged.before : staged.after;
    live_ += live;
  }
  return {};
}

Status Replica::Commit() {
  can_undo_ = false;
  undo_ = std::exchange(staged_, {});
  DELTAWIRE_TRY(WriteAll(undo_, false));
  can_undo_ = true;
  staged_digest_ = live_;
  return {};
}

Status Replica::Undo() {
  if (!can_undo_)
    return Fail(Code::kInvalidArgument, "there is no commit to undo; only the last one can be, once");
  can_undo_ = false;
  DELTAWIRE_TRY(WriteAll(undo_, true));
  undo_.clear();
  DiscardStaged();
  return {};
}

Status Replica::Verify() const {
  const auto& places = grid_->places();
  std::vector<uint8_t> differ(places.size(), 0);
  parallel_.For(places.size(), [&](uint64_t i) {
    const auto [tensor, block] = places[i];
    for (size_t view = 0; view < tensors_[tensor].views.size(); ++view) {
      if (At(tensor, block, view).DigestNow() != blocks_[tensor][block]) differ[i] = 1;
    }
  });
  DELTAWIRE_TRY(CheckMemory());
  std::vector<std::string> wrong;
  for (size_t i = 0; i < places.size(); ++i) {
    if (differ[i]) wrong.push_back(Where(places[i].tensor, places[i].block));
  }
  if (wrong.empty()) return {};
  const size_t shown = std::min<size_t>(wrong.size(), 10);
  return Fail(Code::kUnusable,
              "{} block(s) no longer hold the bits that were proved: {}{}; load an anchor or restart",
              wrong.size(),
              fmt::join(wrong.begin(), wrong.begin() + static_cast<std::ptrdiff_t>(shown), "; "),
              shown < wrong.size() ? "; ..." : "");
}

uint64_t Replica::memory_bytes() const {
  uint64_t bytes = 0;
  for (const StagedMap* map : {&staged_, &undo_}) {
    for (const auto& [place, block] : *map) {
      bytes += sizeof(block) + block.positions.capacity() * 4 + block.old_bits.capacity() +
               block.new_bits.capacity();
    }
  }
  return bytes;
}

}  // namespace deltawire::delta
