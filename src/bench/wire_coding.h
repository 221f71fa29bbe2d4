// One coding of a WireModel as publisher and receiver use it: what the groups of suite `wire` time.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "bench/timing.h"
#include "bench/wire_model.h"

namespace deltawire::bench {

// One coding of one model. Encode: from the change set that the detector gives (positions, old and new bits,
// digests) and the new bits in host memory to the update's bytes; the choice of classes and tables, the
// encoder's self-check, hashes and container are part of it. Decode and apply: from those bytes to the live
// tensors; every check, the proof of the 128-bit digest, and the undo log are part of it.
class WireCoding {
 public:
  static Result<std::unique_ptr<WireCoding>> Make(const WireModel& model, codec::Coding coding,
                                                  const Parallel& parallel) {
    std::unique_ptr<WireCoding> wire(new WireCoding(model, coding, parallel));
    DELTAWIRE_TRY(wire->Encode());
    wire->file_ = wire->update_.Join();
    std::vector<delta::ReplicaTensor> targets;
    for (const TensorView& view : model.old_views()) targets.push_back({{view}});
    DELTAWIRE_ASSIGN(wire->replica_, delta::Replica::Attach(model.backends(), model.inventory(), model.grid(),
                                                            std::move(targets), parallel));
    return wire;
  }

  uint64_t size_bytes() const { return file_.size(); }
  Status Encode() {
    delta::EncodeOptions options;
    options.coding = coding_;
    options.source = model_.source();
    DELTAWIRE_ASSIGN(update_, delta::EncodeUpdate(model_.header(), model_.inventory(), model_.grid(),
                                                  model_.changes(), options, parallel_));
    return {};
  }
  Status Apply() {
    DELTAWIRE_ASSIGN(const auto update,
                     delta::DecodeUpdate(file_, model_.inventory(), model_.grid(), parallel_));
    DELTAWIRE_TRY(replica_->Stage(update));
    return replica_->Commit();
  }
  Status Undo() { return replica_->can_undo() ? replica_->Undo() : Status(); }

 private:
  WireCoding(const WireModel& model, codec::Coding coding, const Parallel& parallel)
      : model_(model), coding_(coding), parallel_(parallel) {}

  const WireModel& model_;
  codec::Coding coding_;
  Parallel parallel_;
  delta::EncodedUpdate update_;
  Bytes file_;
  std::optional<delta::Replica> replica_;
};

// Contenders that keep the first error.
class Race {
 public:
  Contender Run(
      const std::function<Status()>& run, const std::function<Status()>& reset = [] { return Status(); }) {
    return {[this, run] { Keep(run()); }, [this, reset] { Keep(reset()); }};
  }
  Status status() const { return status_; }

 private:
  void Keep(Status next) {
    if (status_) status_ = std::move(next);
  }
  Status status_;
};

}  // namespace deltawire::bench
