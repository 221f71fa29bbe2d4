// The trainer's side: publishes the weights that changed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deltawire/expected.h"
#include "deltawire/version_info.h"

namespace deltawire {

enum class Detector : uint8_t {
  kInversion,  // F32 weights served as BF16 and moved by the Adam family or SGD: steps are undone, no copy
               // kept
  kCapture,    // any optimizer that updates one tensor at a time: compared around each update
  kCopyBack,   // served tensors that a master is copied into: compared before each copy
  kSnapshot,   // any optimizer: the served bits of the last version are kept and compared
  kFence,      // no optimizer: blocks whose digest changed are sent whole
};

// A tensor in host memory. data stays where it is, and alive, as long as the publisher.
struct SourceTensor {
  std::string name;                  // as the checkpoint names it
  std::vector<std::string> aliases;  // other names of the same storage (ties)
  const void* data = nullptr;
  std::string dtype;  // safetensors spelling: "F32", "BF16", ...
  std::vector<uint64_t> shape;
  std::vector<int64_t> strides;  // in elements; empty: row-major
  std::string served_dtype;      // what engines hold; empty: dtype
  Detector detector = Detector::kSnapshot;
  uint64_t step = 0;  // kInversion: the optimizer's counter for this tensor now
};

// One step of one tensor by Adam (weight_decay 0: L2 decay is inside m and v), AdamW (decoupled decay) or
// AMSGrad (v: the running maximum), with the numbers that the step used. m and v: after the step, row-major,
// the tensor's element count.
struct AdamStep {
  size_t tensor = 0;  // index in the list given to Open
  double lr = 0;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool bias_correction = true;
  uint64_t step = 0;  // the tensor's counter after the step
  const void* m = nullptr;
  const void* v = nullptr;
  std::string m_dtype = "F32";  // or "BF16": computed in float32 and rounded to nearest when stored
  std::string v_dtype = "F32";
};

// One step of one tensor by SGD: theta -= lr * (x + mu * y + weight_decay * theta). Momentum: x is the buffer
// after the step, weight_decay 0 (it is inside the buffer). None: x is the gradient. Nesterov: x is the
// gradient, y the buffer, mu the momentum. F32, row-major.
struct SgdStep {
  size_t tensor = 0;
  double lr = 0;
  double weight_decay = 0;
  double mu = 0;
  uint64_t step = 0;  // the tensor's counter after the step
  const float* x = nullptr;
  const float* y = nullptr;  // null: none
};

struct PublishOptions {
  std::string url;      // a folder, or "file:///folder"
  std::string run;      // the run's identity; empty: a random one
  bool resume = false;  // go on with the run that is there
  std::string base;     // checkpoint that engines have already; empty: version 0 is written whole
  std::vector<std::string> codings = {"step"};  // "class", "step", "absolute", "open"
  uint64_t anchor_every = 0;  // a full checkpoint beside every Nth version; 0: only where needed
  int threads = 0;            // 0: one per hardware thread
};

// One thread at a time; the tensors must not be written during a call.
class Publisher {
 public:
  // Publishes version 0, or on resume the version that goes on from the newest.
  static Expected<Publisher> Open(const PublishOptions& options, const std::vector<SourceTensor>& tensors);
  ~Publisher();
  Publisher(Publisher&&) noexcept;
  Publisher& operator=(Publisher&&) noexcept;

  const VersionInfo& opened() const;

  // Around every optimizer step, for the tensors that it may change. Before: notices edits since the last
  // observation. After: undoes the step (kInversion).
  Expected<Done> BeforeStep(const std::vector<size_t>& tensors);
  Expected<Done> AfterStep(const std::vector<AdamStep>& adam, const std::vector<SgdStep>& sgd = {});
  // Around the update of these tensors alone (kCapture).
  Expected<Done> BeginCapture(const std::vector<size_t>& tensors);
  Expected<Done> EndCapture(const std::vector<size_t>& tensors);
  // Before `master` (row-major, the tensor's shape) is rounded to nearest into the tensor (kCopyBack).
  Expected<Done> CopyBack(size_t tensor, const void* master, const std::string& dtype);
  // The present weights as the next version, durable when this returns. On error nothing is lost: the next
  // publish carries these changes too.
  Expected<VersionInfo> Publish();
  // A full checkpoint of the newest version; the weights must still be that version's.
  Expected<Done> WriteAnchor();

 private:
  struct State;
  explicit Publisher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace deltawire
