#include "detect/tensor_watch.h"

#include <utility>

namespace deltawire::detect {

namespace {

// One log from the two ascending lists of a change; old_bits: 2 bytes a changed element.
ChangeLog LogOf(std::span<const uint32_t> changed, ByteSpan old_bits, std::span<const uint32_t> uncertain,
                std::span<const uint16_t> uncertain_low, std::span<const uint8_t> uncertain_span) {
  ChangeLog log;
  log.reserve(changed.size() + uncertain.size());
  size_t i = 0;
  size_t j = 0;
  while (i < changed.size() || j < uncertain.size()) {
    if (j == uncertain.size() || (i < changed.size() && changed[i] < uncertain[j])) {
      log.push_back({changed[i], LoadLe<uint16_t>(old_bits.data() + 2 * i), Base::kCertified});
      ++i;
    } else {
      log.push_back(
          {uncertain[j], uncertain_low[j], uncertain_span[j] == 1 ? Base::kNeighbour : Base::kUnknown});
      ++j;
    }
  }
  return log;
}

}  // namespace

std::string_view MethodName(Method method) {
  switch (method) {
    case Method::kInversion: return "inversion";
    case Method::kSnapshot: return "snapshot";
    case Method::kFence: return "fence";
  }
  return "";
}

Result<std::unique_ptr<TensorWatch>> TensorWatch::Create(const device::Backends& backends,
                                                         WatchedTensor tensor, Method method,
                                                         std::string reason, uint64_t start_step) {
  DELTAWIRE_TRY(CheckInside(tensor.live, tensor.name));
  const auto cast = device::CastFor(tensor.live.dtype, tensor.served);
  if (!cast) return Fail(cast.error().Within("tensor " + tensor.name));
  if (method == Method::kInversion && *cast != kernels::Cast::kF32ToBf16) {
    return Fail(Code::kInvalidArgument, "tensor {}: inversion needs F32 weights served as BF16, not {} as {}",
                tensor.name, DtypeName(tensor.live.dtype), DtypeName(tensor.served));
  }
  std::unique_ptr<TensorWatch> watch(
      new TensorWatch(backends, std::move(tensor), method, std::move(reason), start_step, *cast));
  if (method == Method::kSnapshot) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < watch->blocks_.size(); ++i) {
      watch->blocks_[i].snapshot_offset = bytes;
      bytes += ElementCount(watch->boxes()[i]) * kernels::ServedBytes(*cast);
    }
    DELTAWIRE_ASSIGN(watch->snapshot_, watch->live().memory->AllocateLike(bytes));
  }
  return watch;
}

TensorWatch::TensorWatch(const device::Backends& backends, WatchedTensor tensor, Method method,
                         std::string reason, uint64_t start_step, kernels::Cast cast)
    : backends_(backends),
      tensor_(std::move(tensor)),
      method_(method),
      reason_(std::move(reason)),
      cast_(cast),
      key_(DigestKey(tensor_.name)),
      blocks_(tensor_.blocks.size()),
      last_step_(start_step) {}

device::Block TensorWatch::At(uint32_t block) const {
  return {backends_, tensor_.live, tensor_.blocks[block], cast_, key_};
}

Status TensorWatch::Start(uint32_t block) {
  BlockState& state = blocks_[block];
  const device::Block at = At(block);
  state.published = state.fence = at.DigestNow();
  if (method_ == Method::kInversion) state.small.Rebuild(at);
  if (method_ == Method::kSnapshot) at.CopyTo(*snapshot_, state.snapshot_offset);
  return live().memory->Check();
}

Status TensorWatch::CheckFence(uint32_t block) {
  if (method_ != Method::kInversion) return {};
  BlockState& state = blocks_[block];
  const device::Block at = At(block);
  const Digest now = at.DigestNow();
  if (now == state.fence) return live().memory->Check();
  state.fence = now;
  state.small.Rebuild(at);
  state.pending.clear();
  state.pending_unknown = true;
  state.note = "its served bits changed outside an observed optimizer step";
  return live().memory->Check();
}

void TensorWatch::ObserveStep(const StepRecord& record) {
  invert_ = false;
  if (method_ != Method::kInversion || record.step == last_step_) return;
  const uint64_t before = std::exchange(last_step_, record.step);
  if (record.step != before + 1) {
    MarkUnknown(fmt::format("its step counter went from {} to {}", before, record.step));
  } else if (!record.band) {
    MarkUnknown("inversion does not hold: " + record.refusal);
  }
  invert_ = true;
}

Status TensorWatch::InvertBlock(uint32_t block, const StepRecord& record) {
  BlockState& state = blocks_[block];
  const device::Block at = At(block);
  if (state.pending_unknown) {
    state.fence = at.DigestNow();
    state.small.Rebuild(at);
    return live().memory->Check();
  }
  const device::Inversion found = at.InvertAdamw(record.m, record.v, *record.band, &state.fence);
  const ChangeLog step = LogOf(found.changed,
                               {reinterpret_cast<const uint8_t*>(found.changed_old.data()),
                                found.changed_old.size() * sizeof(uint16_t)},
                               found.uncertain, found.uncertain_low, found.uncertain_span);
  state.pending = Merge(std::move(state.pending), state.small.Reconcile(at, step));
  return live().memory->Check();
}

void TensorWatch::CheckStep(uint64_t step) {
  if (method_ != Method::kInversion || step == last_step_) return;
  MarkUnknown(fmt::format("its step counter is {}, the last observed step was {}", step, last_step_));
  last_step_ = step;
}

void TensorWatch::MarkUnknown(const std::string& why) {
  for (BlockState& state : blocks_) {
    state.pending.clear();
    state.pending_unknown = true;
    state.note = why;
  }
}

BlockChange TensorWatch::Dense(uint32_t block) const {
  const device::Block at = At(block);
  BlockChange change;
  change.dense = true;
  change.dense_bits.resize(uint64_t{at.elements()} * at.served_width());
  at.Read(change.dense_bits);
  return change;
}

BlockChange TensorWatch::FromLog(const device::Block& at, const ChangeLog& log) const {
  std::vector<uint32_t> positions(log.size());
  for (size_t i = 0; i < log.size(); ++i) positions[i] = log[i].position;
  Bytes now(log.size() * 2);
  at.Gather(positions, now);
  BlockChange change;
  change.changed.reserve(log.size());
  change.old_bits.reserve(log.size() * 2);
  change.new_bits.reserve(log.size() * 2);
  for (size_t i = 0; i < log.size(); ++i) {
    const auto bits = LoadLe<uint16_t>(now.data() + 2 * i);
    if (log[i].base != Base::kCertified) {
      change.uncertain.push_back(log[i].position);
      change.uncertain_low.push_back(log[i].bits);
      change.uncertain_span.push_back(log[i].base == Base::kNeighbour ? 1 : 0);
      AppendLe(bits, change.uncertain_new);
    } else if (bits != log[i].bits) {
      change.changed.push_back(log[i].position);
      AppendLe(log[i].bits, change.old_bits);
      AppendLe(bits, change.new_bits);
    }
  }
  return change;
}

Result<BlockChange> TensorWatch::Collect(uint32_t block) {
  DELTAWIRE_TRY(CheckFence(block));
  BlockState& state = blocks_[block];
  const device::Block at = At(block);
  const ChangeLog log = std::exchange(state.pending, {});
  const bool unknown = std::exchange(state.pending_unknown, false);
  state.collected = method_ == Method::kInversion ? state.fence : at.DigestNow();

  BlockChange change;
  if (state.collected == state.published && !unknown && log.empty()) return change;
  switch (method_) {
    case Method::kInversion: change = unknown ? Dense(block) : FromLog(at, log); break;
    case Method::kSnapshot:
      at.Compare(*snapshot_, state.snapshot_offset, change.changed, change.old_bits, change.new_bits);
      break;
    case Method::kFence: change = Dense(block); break;
  }
  // Where every base is known, the change must lead from one digest to the other. It does not after a bit
  // flip in the snapshot, or if detection itself were wrong: whatever the cause, the whole block is right.
  if (!change.dense && change.uncertain.empty() &&
      state.published + at.DigestOfChange(change.changed, change.old_bits, change.new_bits) !=
          state.collected) {
    change = Dense(block);
    state.note = fmt::format("{} did not account for all of its change", MethodName(method_));
  }
  if (!state.note.empty() && change.dense) {
    state.note = fmt::format("block {} sent dense: {}", BoxText(boxes()[block]), state.note);
  }
  DELTAWIRE_TRY(live().memory->Check());
  return change;
}

std::vector<std::string> TensorWatch::TakeNotes() {
  std::vector<std::string> notes;
  for (BlockState& state : blocks_) {
    if (!state.note.empty()) notes.push_back(std::exchange(state.note, {}));
  }
  return notes;
}

void TensorWatch::Confirm(uint32_t block, const BlockChange* change) {
  BlockState& state = blocks_[block];
  state.published = state.collected;
  if (method_ != Method::kSnapshot || change == nullptr) return;
  // The snapshot follows the version, not the live tensor, which may have moved on.
  const kernels::Table& table = backends_.For(*snapshot_);
  const uint32_t width = kernels::ServedBytes(cast_);
  const kernels::Target to{snapshot_->handle(), state.snapshot_offset};
  if (change->dense) {
    table.write(to, width, static_cast<uint32_t>(change->dense_bits.size() / width),
                change->dense_bits.data());
  } else {
    table.scatter(to, width, change->changed.data(), static_cast<uint32_t>(change->changed.size()),
                  change->new_bits.data());
  }
}

void TensorWatch::Abandon(uint32_t block, const BlockChange* change) {
  if (method_ != Method::kInversion || change == nullptr)
    return;  // the others compare with what is published
  BlockState& state = blocks_[block];
  state.pending_unknown |= change->dense;
  if (state.pending_unknown) {
    state.pending = {};
    return;
  }
  // Elements that Collect dropped because they had come back to their base need no entry: if they move again,
  // the step that moves them logs that same base.
  ChangeLog log = LogOf(change->changed, change->old_bits, change->uncertain, change->uncertain_low,
                        change->uncertain_span);
  state.pending = Merge(std::move(log), std::move(state.pending));
}

Digest TensorWatch::Recompute(uint32_t block) const { return At(block).DigestNow(); }

void TensorWatch::ReadBox(const Box& box, MutableByteSpan out) const {
  device::Block(backends_, tensor_.live, box, cast_, key_).Read(out);
}

uint64_t TensorWatch::memory_bytes() const {
  uint64_t bytes = snapshot_ ? snapshot_->size_bytes() : 0;
  for (const BlockState& state : blocks_) {
    bytes += sizeof(state) + state.pending.capacity() * sizeof(LogEntry) + state.small.size() * 6;
  }
  return bytes;
}

}  // namespace deltawire::detect
