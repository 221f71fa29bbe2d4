#include "detect/tensor_watch.h"

#include <algorithm>
#include <utility>

#include "kernels/element.h"

namespace deltawire::detect {

namespace {

// width <= kMaxLoggedBytes.
uint32_t LoggedBits(const uint8_t* at, uint32_t width) {
  return static_cast<uint32_t>(kernels::LoadBits(at, width));
}
void AppendBits(uint32_t bits, uint32_t width, Bytes& out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&bits);
  out.insert(out.end(), bytes, bytes + width);
}

template <class T>
void AppendCertified(std::span<const uint32_t> changed, ByteSpan old_bits, ChangeLog& log) {
  for (size_t i = 0; i < changed.size(); ++i) {
    log.emplace_back(changed[i], LoadLe<T>(old_bits.data() + i * sizeof(T)), Base::kCertified);
  }
}
void AppendCertified(uint32_t width, std::span<const uint32_t> changed, ByteSpan old_bits, ChangeLog& log) {
  switch (width) {
    case 1: return AppendCertified<uint8_t>(changed, old_bits, log);
    case 2: return AppendCertified<uint16_t>(changed, old_bits, log);
    default: return AppendCertified<uint32_t>(changed, old_bits, log);
  }
}

// One log from the two ascending lists of a change; old_bits: width bytes a changed element.
ChangeLog LogOf(uint32_t width, std::span<const uint32_t> changed, ByteSpan old_bits,
                std::span<const uint32_t> uncertain, std::span<const uint16_t> uncertain_low,
                std::span<const uint8_t> uncertain_span) {
  ChangeLog log;
  log.reserve(changed.size() + uncertain.size());
  if (uncertain.empty()) {
    AppendCertified(width, changed, old_bits, log);
    return log;
  }
  size_t i = 0;
  size_t j = 0;
  while (i < changed.size() || j < uncertain.size()) {
    if (j == uncertain.size() || (i < changed.size() && changed[i] < uncertain[j])) {
      log.emplace_back(changed[i], LoggedBits(old_bits.data() + uint64_t{i} * width, width),
                       Base::kCertified);
      ++i;
    } else {
      log.emplace_back(uncertain[j], uncertain_low[j],
                       uncertain_span[j] == 1 ? Base::kNeighbour : Base::kUnknown);
      ++j;
    }
  }
  return log;
}

device::Inversion Invert(const device::Block& at, const StepRecord& record, Digest* digest) {
  if (const auto* adam = std::get_if<StepRecord::Adam>(&record.undo)) {
    return at.InvertAdamw(adam->m, adam->v, adam->band, digest);
  }
  const auto& sgd = std::get<StepRecord::Sgd>(record.undo);
  return at.InvertSgd(sgd.x, sgd.y ? &*sgd.y : nullptr, sgd.band, digest);
}

}  // namespace

std::string_view MethodName(Method method) {
  switch (method) {
    case Method::kInversion: return "inversion";
    case Method::kCapture: return "capture";
    case Method::kCopyBack: return "copy_back";
    case Method::kSnapshot: return "snapshot";
    case Method::kFence: return "fence";
  }
  return "";
}

std::optional<Method> MethodFromName(std::string_view name) {
  for (const auto method :
       {Method::kInversion, Method::kCapture, Method::kCopyBack, Method::kSnapshot, Method::kFence}) {
    if (name == MethodName(method)) return method;
  }
  return std::nullopt;
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
  if (LogsChanges(method) && kernels::ServedBytes(*cast) > kMaxLoggedBytes) {
    return Fail(Code::kInvalidArgument, "tensor {}: {} watches served elements of at most {} bytes, not {}",
                tensor.name, MethodName(method), kMaxLoggedBytes, DtypeName(tensor.served));
  }
  std::unique_ptr<TensorWatch> watch(
      new TensorWatch(backends, std::move(tensor), method, std::move(reason), start_step, *cast));
  for (uint32_t i = 0; i < watch->blocks_.size(); ++i) {
    watch->blocks_[i].first_byte = watch->served_bytes_;
    watch->served_bytes_ += ElementCount(watch->boxes()[i]) * kernels::ServedBytes(*cast);
  }
  if (method == Method::kSnapshot) {
    DELTAWIRE_ASSIGN(watch->snapshot_, watch->live().memory->AllocateLike(watch->served_bytes_));
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
  if (method_ == Method::kSnapshot) {
    at.CopyTo(*snapshot_, state.first_byte);
    DELTAWIRE_TRY(snapshot_->Check());
  }
  return live().memory->Check();
}

Status TensorWatch::CheckFence(uint32_t block) {
  if (!LogsChanges(method_)) return {};
  const device::Block at = At(block);
  MeetFence(block, at, at.DigestNow());
  return live().memory->Check();
}

void TensorWatch::MeetFence(uint32_t block, const device::Block& at, const Digest& now) {
  BlockState& state = blocks_[block];
  if (now == state.fence) return;
  state.fence = now;
  if (method_ == Method::kInversion) state.small.Rebuild(at);
  state.pending = {};
  state.pending_unknown = true;
  // Not over a cause that is known better: steps that went by unseen change bits, too.
  if (state.note.empty()) {
    state.note =
        "its served bits changed, but not by an observed optimizer step (an edit, reloaded optimizer state, "
        "or an "
        "optimizer that is new or lost its hooks: then open a new publisher)";
  }
}

void TensorWatch::ObserveStep(const StepRecord& record) {
  invert_ = false;
  if (method_ != Method::kInversion || record.counter == last_step_) return;
  const uint64_t before = std::exchange(last_step_, record.counter);
  if (record.counter != before + 1) {
    MarkUnknown(fmt::format("its step counter went from {} to {}", before, record.counter));
  } else if (std::holds_alternative<std::monostate>(record.undo)) {
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
  const device::Inversion found = Invert(at, record, &state.fence);
  const ChangeLog step = LogOf(sizeof(uint16_t), found.changed,
                               {reinterpret_cast<const uint8_t*>(found.changed_old.data()),
                                found.changed_old.size() * sizeof(uint16_t)},
                               found.uncertain, found.uncertain_low, found.uncertain_span);
  state.pending = Merge(std::move(state.pending), state.small.Reconcile(at, step));
  return live().memory->Check();
}

Status TensorWatch::BeginCapture(uint32_t block, const Memory& scratch) {
  if (method_ != Method::kCapture) return {};
  At(block).CopyTo(scratch, capture_offset_ + blocks_[block].first_byte);
  return live().memory->Check();
}

Status TensorWatch::EndCapture(uint32_t block, const Memory& scratch) {
  if (method_ != Method::kCapture) return {};
  BlockState& state = blocks_[block];
  const device::Block at = At(block);
  std::vector<uint32_t> changed;
  Bytes old_bits, new_bits;
  at.Compare(scratch, capture_offset_ + state.first_byte, changed, old_bits, new_bits);
  LogExact(state, at, changed, old_bits, new_bits);
  return live().memory->Check();
}

Status TensorWatch::CheckMaster(const TensorView& master) const {
  DELTAWIRE_TRY(CheckInside(master, tensor_.name));
  if (master.shape != live().shape) {
    return Fail(Code::kMismatch, "tensor {}: its master has shape {}, not {}", tensor_.name,
                ShapeText(master.shape), ShapeText(live().shape));
  }
  if (master.memory->device() != live().memory->device()) {
    return Fail(Code::kMismatch, "tensor {}: its master is on another device", tensor_.name);
  }
  if (live().dtype != tensor_.served) {
    return Fail(Code::kInvalidArgument,
                "tensor {}: copy_back watches a tensor that is served as stored, not {} as {}", tensor_.name,
                DtypeName(live().dtype), DtypeName(tensor_.served));
  }
  const auto cast = device::CastFor(master.dtype, tensor_.served);
  if (!cast) return Fail(cast.error().Within("tensor " + tensor_.name));
  return {};
}

Status TensorWatch::CopyBack(uint32_t block, const TensorView& master) {
  if (method_ != Method::kCopyBack) return {};
  BlockState& state = blocks_[block];
  const device::Block at = At(block);
  const device::Block next(backends_, master, tensor_.blocks[block],
                           *device::CastFor(master.dtype, tensor_.served), key_);
  std::vector<uint32_t> changed;
  Bytes old_bits, new_bits;
  if (const auto offset = at.dense_at()) {
    next.Compare(*live().memory, *offset, changed, old_bits, new_bits);
  } else {
    const uint64_t bytes = uint64_t{at.elements()} * at.served_width();
    DELTAWIRE_ASSIGN(const auto before, live().memory->AllocateLike(bytes));
    at.CopyTo(*before, 0);
    next.Compare(*before, 0, changed, old_bits, new_bits);
  }
  LogExact(state, at, changed, old_bits, new_bits);
  return live().memory->Check();
}

void TensorWatch::LogExact(BlockState& state, const device::Block& at, std::span<const uint32_t> changed,
                           ByteSpan old_bits, ByteSpan new_bits) const {
  state.fence += at.DigestOfChange(changed, old_bits, new_bits);
  if (state.pending_unknown) return;
  state.pending =
      Merge(std::move(state.pending), LogOf(kernels::ServedBytes(cast_), changed, old_bits, {}, {}, {}));
}

Status TensorWatch::Rebind(TensorView live) {
  DELTAWIRE_TRY(CheckInside(live, tensor_.name));
  if (live.shape != tensor_.live.shape || live.dtype != tensor_.live.dtype ||
      live.memory->device() != tensor_.live.memory->device()) {
    return Fail(Code::kMismatch, "tensor {}: it can't go on as {} {}, it was {} {} on the same device",
                tensor_.name, DtypeName(live.dtype), ShapeText(live.shape), DtypeName(tensor_.live.dtype),
                ShapeText(tensor_.live.shape));
  }
  tensor_.live = std::move(live);
  return {};
}

void TensorWatch::CheckStep(uint64_t step) {
  if (method_ != Method::kInversion || step == last_step_) return;
  MarkUnknown(fmt::format("its step counter is {}, the last observed step was {}", step, last_step_));
  last_step_ = step;
}

void TensorWatch::MarkUnknown(const std::string& why) {
  for (BlockState& state : blocks_) {
    state.pending = {};
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
  const uint32_t width = at.served_width();
  Bytes now(log.size() * width);
  at.Gather(positions, now);
  BlockChange change;
  change.changed.reserve(log.size());
  change.old_bits.reserve(log.size() * width);
  change.new_bits.reserve(log.size() * width);
  for (size_t i = 0; i < log.size(); ++i) {
    const uint32_t bits = LoggedBits(now.data() + i * width, width);
    if (log[i].base != Base::kCertified) {
      change.uncertain.push_back(log[i].position);
      change.uncertain_low.push_back(static_cast<uint16_t>(log[i].bits));
      change.uncertain_span.push_back(log[i].base == Base::kNeighbour ? 1 : 0);
      AppendBits(bits, width, change.uncertain_new);
    } else if (bits != log[i].bits) {
      change.changed.push_back(log[i].position);
      AppendBits(log[i].bits, width, change.old_bits);
      AppendBits(bits, width, change.new_bits);
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
  state.collected = LogsChanges(method_) ? state.fence : at.DigestNow();

  BlockChange change;
  if (state.collected == state.published && (unknown || log.empty())) {
    state.note.clear();
    return change;
  }
  switch (method_) {
    case Method::kInversion:
    case Method::kCapture:
    case Method::kCopyBack: change = unknown ? Dense(block) : FromLog(at, log); break;
    case Method::kSnapshot:
      if (unknown) {
        change = Dense(block);
        break;
      }
      at.Compare(*snapshot_, state.first_byte, change.changed, change.old_bits, change.new_bits);
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
    state.refuted = LogsChanges(method_);
  }
  if (!state.note.empty() && change.dense) {
    state.note = fmt::format("block {} sent dense: {}", BoxText(boxes()[block]), state.note);
  }
  DELTAWIRE_TRY(live().memory->Check());
  return change;
}

bool TensorWatch::Refuted() const {
  return std::ranges::any_of(blocks_, [](const BlockState& state) { return state.refuted; });
}

void TensorWatch::Demote() {
  const auto found = MethodName(method_);
  auto snapshot = live().memory->AllocateLike(served_bytes_);
  method_ = snapshot ? Method::kSnapshot : Method::kFence;
  reason_ = fmt::format("{} did not account for all of its change{}; it was: {}", found,
                        snapshot ? "" : ", and there is no memory for a snapshot", reason_);
  if (snapshot) snapshot_ = *std::move(snapshot);
  demoted_ = true;
  invert_ = false;
}

Result<BlockChange> TensorWatch::Recollect(uint32_t block) {
  BlockState& state = blocks_[block];
  const device::Block at = At(block);
  // These are the bits of the version in flight. Should it be abandoned, the block goes dense again.
  if (snapshot_) {
    at.CopyTo(*snapshot_, state.first_byte);
    DELTAWIRE_TRY(snapshot_->Check());
  }
  BlockChange change;
  if (state.collected != state.published) change = Dense(block);
  state.pending = {};
  state.pending_unknown = false;
  state.small = {};
  if (std::exchange(state.refuted, false)) {
    state.note = fmt::format("{}: watched by {} from now on", state.note, MethodName(method_));
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

Status TensorWatch::Confirm(uint32_t block, const BlockChange* change) {
  BlockState& state = blocks_[block];
  state.published = state.collected;
  if (method_ != Method::kSnapshot || change == nullptr) return {};
  // The snapshot follows the version, not the live tensor, which may have moved on.
  const kernels::Table& table = backends_.For(*snapshot_);
  const uint32_t width = kernels::ServedBytes(cast_);
  const kernels::Target to{snapshot_->handle(), state.first_byte};
  if (change->dense) {
    table.write(to, width, static_cast<uint32_t>(change->dense_bits.size() / width),
                change->dense_bits.data());
  } else {
    table.scatter(to, width, change->changed.data(), static_cast<uint32_t>(change->changed.size()),
                  change->new_bits.data());
  }
  Status written = snapshot_->Check();
  if (!written) state.pending_unknown = true;
  return written;
}

void TensorWatch::Abandon(uint32_t block, const BlockChange* change) {
  if (method_ == Method::kFence || change == nullptr) return;  // it compares with what is published
  BlockState& state = blocks_[block];
  state.pending_unknown |= change->dense;
  if (method_ == Method::kSnapshot) return;
  if (state.pending_unknown) {
    state.pending = {};
    return;
  }
  // Elements that Collect dropped because they had come back to their base need no entry: if they move again,
  // the step that moves them logs that same base.
  ChangeLog log = LogOf(kernels::ServedBytes(cast_), change->changed, change->old_bits, change->uncertain,
                        change->uncertain_low, change->uncertain_span);
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
