// Hyperparameters of a step, and what its kernel makes of them.
#pragma once

#include <cstdint>

#include "base/rng.h"
#include "kernels/adamw_band.h"
#include "stress/plan.h"
#include "stress/step_orders.h"

namespace deltawire::stress {

// What the detector is told. For SGD eps and the betas mean nothing.
struct Hyper {
  kernels::AdamwHyper adamw;
  double momentum = 0;  // SGD with Nesterov: the factor of the buffer
};

// The natural generators' few settings, or the whole grid (docs/benchmarks.md, "Stress of detection").
// lr * weight_decay <= 1/2 throughout.
Hyper DrawHyper(const BatchPlan& plan, Rng& rng);

// beta^t with the error of the method, whose direction is drawn.
double PowerBy(Power power, double beta, uint64_t step, Rng& rng);

StepScalars MakeStepScalars(const BatchPlan& plan, const Hyper& hyper, Rng& rng);

}  // namespace deltawire::stress
