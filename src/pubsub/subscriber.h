// The engine's side: follows a run and keeps live tensors at exactly one verified version.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "delta/replica.h"
#include "device/backends.h"
#include "pubsub/version.h"
#include "store/store.h"
#include "sync/catalog.h"
#include "sync/follow.h"

namespace deltawire::pubsub {

// A tensor of the receiver under one of its names. Several names of the same storage are given each.
struct TargetTensor {
  std::string name;
  TensorView view;
};

// Told around each write of live tensors, on the writing thread. A folder keeps its journal here.
class CommitObserver {
 public:
  virtual ~CommitObserver() = default;
  // What is about to be written.
  struct Write {
    const delta::Replica::StagedMap& changes;
    bool undo;  // the changes' old bits are written (a rollback), not the new ones
    const format::Inventory& inventory;
    const delta::GridIndex& grid;
    const std::string& run;
    const Version& version;  // what the target is when the write is done
  };
  // Before the first write. An error cancels it: nothing has changed.
  virtual Status BeforeWrite(const Write& write) = 0;
  // After the last one. An error leaves the target unusable until it is opened again.
  virtual Status AfterWrite(const Write& write) = 0;
};

struct SubscriberOptions {
  std::shared_ptr<Store> store;    // shared with publishers of the same process
  std::optional<std::string> run;  // refuse any other run; otherwise the first seen is pinned
  std::vector<std::string> codings = {"class", "step", "absolute", "open"};  // that may be used
  CommitObserver* observer = nullptr;
  device::Backends backends = device::HostBackends();
  Parallel parallel{};
  Clock* clock = &SystemClock();
  LogSink* log = &NullLog();
};

// One thread at a time, except NewerVersion. Between Stage and Commit the live tensors are only read; Commit
// is the only call that writes them, besides Rollback. After any error but kUnusable the receiver holds what
// it held before.
class Subscriber {
 public:
  // Doesn't touch the store: an engine may start before its trainer.
  static Result<std::unique_ptr<Subscriber>> Open(SubscriberOptions options,
                                                  std::vector<TargetTensor> targets);

  // The committed version; nullopt before the first commit and while the live bits are those of no version.
  const std::optional<Version>& version() const { return version_; }
  // Digest of the live bits as proved. kNotFound before the run has been seen.
  Result<Digest> digest() const;
  const std::string& run() const { return run_; }
  // Names of the receiver that the run does not manage, sorted. Empty before the run has been seen.
  const std::vector<std::string>& unmanaged() const { return unmanaged_; }

  // Fetches, checks and proves everything up to `number` (nullopt: the newest). Returns the version that
  // Commit would make live; it is the present one when there is nothing newer. Replaces what was staged
  // before. What is missing or damaged in the store, a version whose result is wrong (kDetectorFault) and a
  // base that no longer holds are reported to the log and gone round, through an anchor where need be. If
  // there is no way round, the first error is returned: it says what is wrong.
  Result<Version> Stage(std::optional<uint64_t> number = std::nullopt);
  bool has_staged() const { return staged_.has_value(); }
  // The pause: writes what is staged. kInvalidArgument when nothing is.
  Result<Version> Commit();
  Result<Version> Update(std::optional<uint64_t> number = std::nullopt);

  // Back to the version before the last commit, once. Then Stage and Update without a number are refused
  // until Unpin or an explicit number.
  Result<Version> Rollback();
  bool pinned() const { return pinned_; }
  void Unpin() { pinned_ = false; }

  // Re-reads every live bit. kUnusable names what differs; the next Stage then takes a full state (an
  // anchor), or fails.
  Status Verify();

  // Waits for a version above `than` (nullopt: any). Touches nothing of this object: thread-safe beside all
  // else.
  Result<std::optional<uint64_t>> NewerVersion(std::optional<uint64_t> than, const sync::WaitOptions& wait,
                                               const std::stop_token& cancel = {}) const;

  // Updates refused since Open because the result would have been wrong.
  uint64_t refusals() const { return refusals_; }
  uint64_t memory_bytes() const { return replica_ ? replica_->memory_bytes() : 0; }

 private:
  Subscriber(SubscriberOptions options, std::vector<TargetTensor> targets);
  Status Attach();
  // Plans and stages along the path. failed: the step that an error came from, if the path was found.
  Result<Version> StageAlong(const sync::PathRequest& request, std::optional<sync::Step>& failed);
  Result<uint64_t> StagePatch(const sync::Step& step);
  Result<uint64_t> StageAnchor(const sync::Step& step);
  Status WriteObserved(const Version& version, bool undo);

  SubscriberOptions options_;
  std::vector<TargetTensor> targets_;
  sync::Catalog catalog_;
  std::string run_;
  std::shared_ptr<const format::Inventory> inventory_;  // of the run; the catalog keeps it too
  std::string inventory_hash_;
  std::unique_ptr<delta::GridIndex> grid_;
  std::optional<delta::Replica> replica_;
  std::vector<std::string> unmanaged_;
  std::optional<Version> version_;
  std::optional<Version> staged_;
  std::optional<Version> previous_;  // what Rollback goes back to
  bool pinned_ = false;
  bool unusable_ = false;
  bool in_doubt_ = false;  // Verify found other bits: the next update must be a full state
  uint64_t refusals_ = 0;
};

}  // namespace deltawire::pubsub
