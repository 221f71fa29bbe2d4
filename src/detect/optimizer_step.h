// One observed optimizer step of one tensor: what inversion needs to undo it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "kernels/adamw_band.h"
#include "kernels/sgd_band.h"
#include "tensor/tensor_view.h"

namespace deltawire::detect {

// The Adam family: Adam, AdamW, AMSGrad (v is the running maximum), maximize. m and v as they stand after the
// step: F32 or BF16 each, the tensor's shape, the tensor's device. hyper.step is not read: the counter of the
// step record is.
struct AdamStep {
  kernels::AdamwHyper hyper;
  TensorView m, v;
};

// Stochastic gradient descent. x: the momentum buffer after the step, or the gradient that the step used
// (no momentum, Nesterov); y: the momentum buffer of a Nesterov step. F32, the tensor's shape and device.
struct SgdStep {
  kernels::SgdHyper hyper;
  TensorView x;
  std::optional<TensorView> y;
};

struct OptimizerStep {
  uint64_t counter = 0;  // of this tensor, after the step
  // monostate: the step can't be undone, for `refusal`.
  std::variant<std::monostate, AdamStep, SgdStep> state;
  std::string refusal;
};

// The same with the constants of its band; made once a tensor, read by every block.
struct StepRecord {
  struct Adam {
    TensorView m, v;
    kernels::AdamwBand band;
  };
  struct Sgd {
    TensorView x;
    std::optional<TensorView> y;
    kernels::SgdBand band;
  };
  uint64_t counter = 0;
  std::variant<std::monostate, Adam, Sgd> undo;
  std::string refusal;  // with monostate: why
};

// Checks the preconditions of the proof that lie in the numbers and in the state's dtypes and shapes.
StepRecord MakeStepRecord(const OptimizerStep& step, const Shape& shape);

}  // namespace deltawire::detect
