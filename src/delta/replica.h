// The live tensors of one receiver as a transaction: stage, prove, commit, undo.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "delta/decode.h"
#include "delta/grid_index.h"
#include "delta/member_bits.h"
#include "delta/staged_block.h"
#include "device/block.h"
#include "format/inventory.h"
#include "tensor/tensor_view.h"

namespace deltawire::delta {

// Where one inventory tensor lives in the receiver. More than one view when an engine keeps several copies of
// a tied weight; views of the same memory are given once.
struct ReplicaTensor {
  std::vector<TensorView> views;
};

// Not thread-safe: the owner serialises calls. While nothing is being committed, live tensors are only read.
// What is staged is relative to the live tensors; several updates may be staged on top of each other and are
// committed as one.
class Replica {
 public:
  // Reads every tensor once: afterwards digest() describes the live bits. kMismatch when a view's dtype or
  // shape is not the inventory's, or copies of one tensor differ from each other; kInvalidArgument when a
  // view can't be written. inventory, grid and backends outlive the replica.
  static Result<Replica> Attach(const device::Backends& backends, const format::Inventory& inventory,
                                const GridIndex& grid, std::vector<ReplicaTensor> tensors,
                                const Parallel& parallel);

  // State digest of the live bits, as proved at attach and at each commit since; and of one tensor.
  const Digest& digest() const { return live_; }
  Digest TensorDigest(uint32_t tensor) const;
  // The digest that Commit would make live.
  const Digest& staged_digest() const { return staged_digest_; }
  bool has_staged() const { return !staged_.empty(); }
  uint64_t staged_elements() const;

  // Stages an update on top of what is staged. Reads old bits, resolves new ones, and proves each block's and
  // the whole state's digest before it keeps anything. kWrongBase when the update starts from another state;
  // kDetectorFault when its bytes are intact and its base digest is ours, but the result is not what it
  // promises: the publisher's detection, or this receiver's memory, is wrong. On error nothing changes.
  Status Stage(const DecodedUpdate& update);

  // Stages a full state (an anchor) in place of everything staged. read gives the bits of a block; called for
  // each block once, from several threads. expected: the digest of every tensor, in inventory order.
  using ReadBlock = std::function<Status(uint32_t tensor, uint32_t block, MutableByteSpan bits)>;
  Status StageFull(const ReadBlock& read, const std::vector<Digest>& expected);

  void DiscardStaged();

  // Writes what is staged into every view. kUnusable when a device failed half-way: the live state is unknown
  // then. Keeps the undo log of this commit (and only this one). With nothing staged it succeeds and undoes
  // to the same.
  Status Commit();
  bool can_undo() const { return can_undo_; }
  // Puts back what the last Commit replaced. Discards what is staged. kInvalidArgument without a commit to
  // undo.
  Status Undo();

  // Re-reads every live bit of every view and compares with what was proved. kUnusable naming the tensors
  // that differ.
  Status Verify() const;

  // What is staged, for a journal: ascending by (tensor, block).
  using StagedMap = std::map<std::pair<uint32_t, uint32_t>, StagedBlock>;
  const StagedMap& staged() const { return staged_; }
  // What Undo would put back (the old bits).
  const StagedMap& undo_log() const { return undo_; }

  // Host bytes held by staged changes and the undo log.
  uint64_t memory_bytes() const;

 private:
  Replica(const device::Backends& backends, const format::Inventory& inventory, const GridIndex& grid,
          std::vector<ReplicaTensor> tensors, const Parallel& parallel);

  device::Block At(uint32_t tensor, uint32_t block, size_t view) const;
  std::string Where(uint32_t tensor, uint32_t block) const;
  const StagedBlock* FindStaged(uint32_t tensor, uint32_t block) const;
  std::string Where(std::span<const BlockMember> members) const;
  // For the message of a failed proof: which of these members' live bits are no longer those that were
  // proved.
  std::string Damage(std::span<const BlockMember> members) const;
  // A class block in the base that it is staged on: live bits, or what an earlier update has staged over
  // them.
  Result<codec::Decoded> PlaceInBase(const DecodedBlock& block) const;
  // One result for each member.
  Result<std::vector<StagedBlock>> StageSparse(const DecodedBlock& block) const;
  Result<std::vector<StagedBlock>> StageBlock(const DecodedBlock& block) const;
  Result<StagedBlock> StageDense(uint32_t tensor, uint32_t block, MutableByteSpan bits) const;
  Status CheckCopies(uint32_t tensor, uint32_t block, std::span<const uint32_t> positions,
                     ByteSpan bits) const;
  bool AnyStaged(std::span<const BlockMember> members) const;
  // Fills live (unless it is filled) and staged of a list of a block's changes.
  Status ReadOld(std::span<const BlockMember> members, bool live_known, MemberBits& list) const;
  Status CheckMemory() const;
  Status WriteAll(const StagedMap& changes, bool undo);

  const device::Backends* backends_;
  const format::Inventory* inventory_;
  const GridIndex* grid_;
  std::vector<ReplicaTensor> tensors_;
  std::vector<uint64_t> keys_;
  Parallel parallel_;
  std::vector<std::vector<Digest>> blocks_;  // live, by tensor and block
  Digest live_;
  StagedMap staged_;
  Digest staged_digest_;
  StagedMap undo_;
  bool can_undo_ = false;
};

}  // namespace deltawire::delta
