// A batch's weights and optimizer state, one step after the other: the training side, which knows the truth.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "kernels/sgd_band.h"
#include "stress/hyper.h"
#include "stress/inputs.h"
#include "stress/plan.h"

namespace deltawire::stress {

class Scene {
 public:
  explicit Scene(const BatchPlan& plan);

  uint32_t elements() const { return n_; }
  uint32_t steps() const { return kBatchElements / n_; }

  // Takes one step. Natural training and the plan's interval go on with the weights of the last one;
  // otherwise each step has new ones.
  void Step();

  // Float32 weights; `theta` stays in place and starts a host allocation of at least n * 4 bytes.
  float* theta() { return theta_.data(); }
  const float* theta() const { return theta_.data(); }
  const float* before() const { return before_.data(); }
  // What the detector is given of the last step. State as the optimizer stores it: float32 or BF16 bits. For
  // Adam `first` and `second` are m and v (or AMSGrad's maximum); for SGD x and y, `second` only with
  // Nesterov.
  const Hyper& hyper() const { return hyper_; }
  kernels::SgdHyper sgd_hyper() const;
  const void* first() const;
  const void* second() const;
  // The same state as float32.
  const float* first_float() const { return shown_first_.data(); }
  const float* second_float() const { return shown_second_.data(); }
  // What the step's kernel held in registers.
  const float* first_register() const { return first_.data(); }
  const float* second_register() const { return largest_.data(); }
  const StepScalars& scalars() const { return scalars_; }

 private:
  using Floats = std::vector<float>;

  bool trains() const { return plan_.generator <= Generator::kSmall; }
  Noise Draw();
  Aim MakeAim();
  Gradients MakeGradients();
  Parameter Stored();
  void Begin();
  void Store();

  BatchPlan plan_;
  SeededRng rng_;
  uint32_t n_;
  uint64_t taken_ = 0;
  Hyper hyper_;
  StepScalars scalars_{};
  StepLoop loop_;
  Floats theta_, before_, first_, second_, largest_;
  Floats stored_first_, stored_second_, stored_largest_, scale_, mean_;
  Floats shown_first_, shown_second_;
  std::vector<uint16_t> first_bits_, second_bits_;
};

}  // namespace deltawire::stress
