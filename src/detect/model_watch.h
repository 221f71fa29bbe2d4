// Watches all tensors of one trainer process: what a training loop reports, spread over blocks and threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "detect/tensor_watch.h"

namespace deltawire::detect {

struct WatchSpec {
  WatchedTensor tensor;
  Method method = Method::kSnapshot;
  std::string reason;       // why this method
  uint64_t start_step = 0;  // the optimizer's counter for this tensor now
};

// One optimizer step as one tensor saw it.
struct TensorStep {
  uint32_t tensor = 0;
  OptimizerStep step;
};

// A tensor whose method turned out to be wrong about it, and what watches it since.
struct Demotion {
  uint32_t tensor = 0;
  Method method = Method::kSnapshot;
  std::string reason;
};

// Tensors are known by their index in the list given to Create; an index that is not in it is
// kInvalidArgument. One thread at a time; the owner serialises. Live tensors must not be written during a
// call. Errors name the tensor.
class ModelWatch {
 public:
  // Takes the present bits as the last published ones.
  static Result<std::unique_ptr<ModelWatch>> Create(const device::Backends& backends, Parallel parallel,
                                                    std::vector<WatchSpec> tensors);

  uint32_t size() const { return static_cast<uint32_t>(watches_.size()); }
  TensorWatch& operator[](uint32_t tensor) { return *watches_[tensor]; }
  const TensorWatch& operator[](uint32_t tensor) const { return *watches_[tensor]; }

  // Before an optimizer steps: notices edits of its tensors since the last observation.
  Status BeforeStep(std::span<const uint32_t> tensors);
  // After it: undoes the step of every listed tensor.
  Status AfterStep(std::span<const TensorStep> steps);
  // The counters that the optimizers have now, one a tensor: one that is not the last observed means that
  // steps went by unseen, and the tensor goes dense.
  void CheckSteps(std::span<const uint64_t> counters);

  // Around the update of these tensors (method kCapture) alone; End names the same ones. Several may be under
  // way at once, of different tensors. A Begin without its End leaves the tensors to the fence.
  Status BeginCapture(std::span<const uint32_t> tensors);
  Status EndCapture(std::span<const uint32_t> tensors);

  // Before `master` is copied into the tensor (method kCopyBack).
  Status CopyBack(uint32_t tensor, const TensorView& master);

  Status Rebind(uint32_t tensor, TensorView live);

  // What TensorWatch::Collect gives for every block of every tensor. A tensor whose method is refuted is
  // demoted, and goes whole. On error the blocks that were collected stay in `changes`, to be abandoned.
  using Changes = std::vector<std::vector<BlockChange>>;
  Status Collect(Changes& changes);
  // Since the start.
  std::vector<Demotion> Demotions() const;
  // By tensor and block: what was collected; null where it was empty.
  using ChangePointers = std::vector<std::vector<const BlockChange*>>;
  // An error of Confirm names a tensor whose snapshot could not follow; all that could be confirmed is.
  Status Confirm(const ChangePointers& changes);
  void Abandon(const ChangePointers& changes);

  using BlockTask = std::function<Status(TensorWatch&, uint32_t tensor, uint32_t block)>;
  // For every block of every tensor, in parallel; the first failure, in order.
  Status ForEachBlock(const BlockTask& task);

  // Host and device bytes held beyond the live tensors.
  uint64_t memory_bytes() const;

 private:
  struct Place {
    uint32_t tensor;
    uint32_t block;
  };
  ModelWatch(const device::Backends& backends, Parallel parallel);
  Status Run(const std::vector<Place>& places, const BlockTask& task);
  std::vector<Place> PlacesOf(std::span<const uint32_t> tensors) const;
  // method: nullopt where any will do.
  Status CheckIndices(std::span<const uint32_t> tensors, std::optional<Method> method) const;

  const device::Backends backends_;  // the watches refer to it
  Parallel parallel_;
  std::vector<std::unique_ptr<TensorWatch>> watches_;
  std::vector<Place> places_;  // every block of every tensor
  struct Capture {
    std::vector<uint32_t> tensors;
    std::shared_ptr<Memory> scratch;  // their served bits, one tensor after another
  };
  std::vector<Capture> captures_;  // under way
  std::shared_ptr<Memory> spare_;  // of the last one that ended
};

}  // namespace deltawire::detect
