// Watches one tensor of the trainer between publishes and says, block by block, what to send.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "detect/change_log.h"
#include "detect/small_set.h"
#include "device/block.h"
#include "tensor/change_set.h"
#include "tensor/tensor_view.h"

namespace deltawire::detect {

enum class Method : uint8_t {
  kInversion,  // undoes each observed AdamW step; keeps no copy
  kSnapshot,   // keeps the served bits of the last publish and compares
  kFence,      // no optimizer: digests blocks at publish and sends those that differ, whole
};
std::string_view MethodName(Method method);

struct WatchedTensor {
  std::string name;  // canonical
  TensorView live;
  Dtype served = Dtype::kBf16;
  std::vector<Box> blocks;
};

// One observed optimizer step of a tensor.
struct StepRecord {
  uint64_t step = 0;  // the state's counter after the step
  TensorView m, v;    // moments after the step, F32, the tensor's shape
  // nullopt: the hyperparameters do not allow inversion, for `refusal`.
  std::optional<kernels::AdamwBand> band;
  std::string refusal;
};

// Thread rules: functions with a block index may run in parallel for different blocks; all others alone.
// "Pending" are the changes since the last collected version. What was collected belongs to the caller, who
// keeps it until the version is durable and then confirms it, or abandons it and hands it back.
class TensorWatch {
 public:
  // kInversion needs an F32 tensor served as BF16. start_step: the optimizer's counter for this tensor now.
  static Result<std::unique_ptr<TensorWatch>> Create(const device::Backends& backends, WatchedTensor tensor,
                                                     Method method, std::string reason, uint64_t start_step);

  const std::string& name() const { return tensor_.name; }
  Method method() const { return method_; }
  // Why this method: one clause for reports.
  const std::string& reason() const { return reason_; }
  const std::vector<Box>& boxes() const { return tensor_.blocks; }
  Dtype served() const { return tensor_.served; }
  const TensorView& live() const { return tensor_.live; }

  // Takes the block's present bits as the last published ones.
  Status Start(uint32_t block);

  // Before a step and at publish: marks the block unknown if its served bits are not those that the last
  // observation left (an edit outside the optimizer's step). kInversion only, others ignore it.
  Status CheckFence(uint32_t block);

  // After a step: first once for the tensor, then for each block. A counter that did not move means that
  // the optimizer left the tensor alone (NeedsInversion is then false); one that jumped, or a refusal, makes
  // every block unknown.
  void ObserveStep(const StepRecord& record);
  bool NeedsInversion() const { return invert_; }
  Status InvertBlock(uint32_t block, const StepRecord& record);

  // At publish: the counter that the optimizer has now. One that is not the last observed means that steps
  // went by unseen: every block becomes unknown. kInversion only, others ignore it.
  void CheckStep(uint64_t step);

  // What turns the published bits into the present ones. Pending is empty after it; the previous version must
  // be confirmed or abandoned first. DigestAt(block) is then the present digest.
  Result<BlockChange> Collect(uint32_t block);
  const Digest& DigestAt(uint32_t block) const { return blocks_[block].collected; }
  const Digest& PublishedDigest(uint32_t block) const { return blocks_[block].published; }
  // Why blocks went dense in the collected version; empty if none did.
  std::vector<std::string> TakeNotes();

  // The collected version is durable. Or it is not, and the next one carries its changes too. change: what
  // Collect returned for the block; null if it was empty.
  void Confirm(uint32_t block, const BlockChange* change);
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
    SmallSet small;
    uint64_t snapshot_offset = 0;  // kSnapshot: byte of the block in snapshot_
    std::string note;
  };

  TensorWatch(const device::Backends& backends, WatchedTensor tensor, Method method, std::string reason,
              uint64_t start_step, kernels::Cast cast);
  device::Block At(uint32_t block) const;
  void MarkUnknown(const std::string& why);
  BlockChange Dense(uint32_t block) const;
  BlockChange FromLog(const device::Block& at, const ChangeLog& log) const;

  const device::Backends& backends_;
  WatchedTensor tensor_;
  Method method_;
  std::string reason_;
  kernels::Cast cast_;
  uint64_t key_;
  std::vector<BlockState> blocks_;
  std::shared_ptr<Memory> snapshot_;
  uint64_t last_step_;
  bool invert_ = false;
  std::vector<std::string> notes_;
};

}  // namespace deltawire::detect
