// Watches one tensor of the trainer between publishes and says, block by block, what to send.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "detect/change_log.h"
#include "detect/optimizer_step.h"
#include "detect/small_set.h"
#include "device/block.h"
#include "tensor/change_set.h"
#include "tensor/tensor_view.h"

namespace deltawire::detect {

enum class Method : uint8_t {
  kInversion,  // undoes each observed optimizer step; keeps no copy
  kCapture,    // compares the served bits before and after each update of the tensor
  kCopyBack,   // compares a master with the served tensor before it is copied there
  kSnapshot,   // keeps the served bits of the last publish and compares
  kFence,      // no optimizer: digests blocks at publish and sends those that differ, whole
};
std::string_view MethodName(Method method);
std::optional<Method> MethodFromName(std::string_view name);
// The first three watch every change as it is made and log its first old value. A digest of the served bits,
// the fence, tells them of changes that they did not watch.
constexpr bool LogsChanges(Method method) { return method <= Method::kCopyBack; }

struct WatchedTensor {
  std::string name;  // canonical
  TensorView live;
  Dtype served = Dtype::kBf16;
  std::vector<Box> blocks;
};

// Thread rules: functions with a block index may run in parallel for different blocks; all others alone.
// "Pending" are the changes since the last collected version. What was collected belongs to the caller, who
// keeps it until the version is durable and then confirms it, or abandons it and hands it back.
class TensorWatch {
 public:
  // kInversion needs an F32 tensor served as BF16; methods that log, a served dtype of at most
  // kMaxLoggedBytes. start_step: the optimizer's counter for this tensor now (kInversion).
  static Result<std::unique_ptr<TensorWatch>> Create(const device::Backends& backends, WatchedTensor tensor,
                                                     Method method, std::string reason, uint64_t start_step);

  const std::string& name() const { return tensor_.name; }
  // Of Create, until Demote.
  Method method() const { return method_; }
  bool demoted() const { return demoted_; }
  // Why this method: one clause for reports.
  const std::string& reason() const { return reason_; }
  const std::vector<Box>& boxes() const { return tensor_.blocks; }
  Dtype served() const { return tensor_.served; }
  const TensorView& live() const { return tensor_.live; }

  // Takes the block's present bits as the last published ones.
  Status Start(uint32_t block);

  // Before a step and at publish: marks the block unknown if its served bits are not those that the last
  // observation left (a change that was not watched). Methods that log; others ignore it.
  Status CheckFence(uint32_t block);

  // kInversion. After a step: first once for the tensor, then for each block. A counter that did not move
  // means that the optimizer left the tensor alone (NeedsInversion is then false); one that jumped, or a
  // refusal, makes every block unknown.
  void ObserveStep(const StepRecord& record);
  bool NeedsInversion() const { return invert_; }
  Status InvertBlock(uint32_t block, const StepRecord& record);

  // kCapture. Around anything that may write the tensor. Begin copies the block's served bits to `scratch`,
  // memory of the tensor's device that has room for served_bytes() at the offset given to PlaceCapture; End
  // compares and moves the fence by exactly what it found. What changed outside of the two, and an End that
  // is missing, is therefore still off the fence at publish.
  uint64_t served_bytes() const { return served_bytes_; }
  void PlaceCapture(uint64_t scratch_offset) { capture_offset_ = scratch_offset; }
  Status BeginCapture(uint32_t block, const Memory& scratch);
  Status EndCapture(uint32_t block, const Memory& scratch);

  // kCopyBack. master: the tensor's shape and device, about to be cast (to nearest) into it. Call CheckFence
  // before.
  Status CheckMaster(const TensorView& master) const;
  Status CopyBack(uint32_t block, const TensorView& master);

  // The tensor's elements are elsewhere now (p.data = ...): same shape, dtype and kind of device. What
  // differs there is noticed by the next fence.
  Status Rebind(TensorView live);

  // At publish: the counter that the optimizer has now. One that is not the last observed means that steps
  // went by unseen: every block becomes unknown. kInversion; others ignore it.
  void CheckStep(uint64_t step);

  // What turns the published bits into the present ones. Pending is empty after it; the previous version must
  // be confirmed or abandoned first. DigestAt(block) is then the present digest.
  Result<BlockChange> Collect(uint32_t block);
  const Digest& DigestAt(uint32_t block) const { return blocks_[block].collected; }
  const Digest& PublishedDigest(uint32_t block) const { return blocks_[block].published; }
  // Whether a method that logs has left out a change, or claimed wrong bits, in what was collected last: its
  // assumptions do not hold for this tensor. Collect has made the block dense, but other blocks, where some
  // bases are not known, could not be checked.
  bool Refuted() const;
  // After that, alone, then Recollect for each block, before Confirm or Abandon: compares with a snapshot
  // from now on, or, where there is no memory for one, goes by the fence. The methods' own calls are then
  // ignored.
  void Demote();
  Result<BlockChange> Recollect(uint32_t block);
  // Why blocks went dense in the collected version; empty if none did.
  std::vector<std::string> TakeNotes();

  // The collected version is durable. Or it is not, and the next one carries its changes too. change: what
  // Collect returned for the block; null if it was empty.
  // An error of Confirm says that the snapshot could not follow; the block goes dense next time.
  Status Confirm(uint32_t block, const BlockChange* change);
  void Abandon(uint32_t block, const BlockChange* change);

  // Digest of the present bits, touching nothing. Full read of the present bits.
  Digest Recompute(uint32_t block) const;
  void ReadBlock(uint32_t block, MutableByteSpan out) const { ReadBox(tensor_.blocks[block], out); }
  // Served bits of any box of at most kMaxBlockElements.
  void ReadBox(const Box& box, MutableByteSpan out) const;

  // Host and device bytes that this watch holds beyond the tensor itself.
  uint64_t memory_bytes() const;

 private:
  struct BlockState {
    Digest published;  // at the last durable version
    Digest collected;  // at the version in flight
    Digest fence;      // at the last observation
    ChangeLog pending;
    bool pending_unknown = false;
    bool refuted = false;
    SmallSet small;
    uint64_t first_byte = 0;  // of the block in memory that holds the tensor's served bits block by block
    std::string note;
  };

  TensorWatch(const device::Backends& backends, WatchedTensor tensor, Method method, std::string reason,
              uint64_t start_step, kernels::Cast cast);
  device::Block At(uint32_t block) const;
  void MarkUnknown(const std::string& why);
  // Marks the block unknown unless `now`, its digest, is the fence.
  void MeetFence(uint32_t block, const device::Block& at, const Digest& now);
  BlockChange Dense(uint32_t block) const;
  BlockChange FromLog(const device::Block& at, const ChangeLog& log) const;
  // Logs exact changes of the block, which lead from the fence to a new one.
  void LogExact(BlockState& state, const device::Block& at, std::span<const uint32_t> changed,
                ByteSpan old_bits, ByteSpan new_bits) const;

  const device::Backends& backends_;
  WatchedTensor tensor_;
  Method method_;
  std::string reason_;
  kernels::Cast cast_;
  uint64_t key_;
  std::vector<BlockState> blocks_;
  uint64_t served_bytes_ = 0;
  uint64_t capture_offset_ = 0;
  std::shared_ptr<Memory> snapshot_;
  uint64_t last_step_;
  bool invert_ = false;
  bool demoted_ = false;
};

}  // namespace deltawire::detect
