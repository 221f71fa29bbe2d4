// Optimizer steps as the kernels in the field compute them: emulations, written from docs/numerics.md.
// Nothing here is shared with what they test.
#pragma once

#include <cstdint>

#include "stress/plan.h"

namespace deltawire::stress {

// The numbers that one step's kernel holds, rounded as it rounds them (MakeStepScalars).
struct StepScalars {
  double lambda;  // lr * weight_decay, for kernels that decay in double
  float factor;   // 1 - lambda
  float lr, decay;
  float step_size;  // lr / bc1
  float bc1, bc2, root_bc2;
  float eps;
  float momentum;  // SGD with Nesterov: the factor of the buffer
};

// theta[i] becomes the weight after the step. first and second: m and v after their update, or SGD's gradient
// and momentum buffer. n elements; arrays don't overlap.
using StepLoop = void (*)(const StepScalars& scalars, const float* first, const float* second, float* theta,
                          uint32_t n);

// Each product and each sum rounds by itself; or every product that is added to something is fused with the
// sum. Both need ProcessorRunsOrders().
StepLoop PlainLoop(Order order);
StepLoop ContractedLoop(Order order);

// AVX2 and FMA, for which the emulations and the generators are compiled.
bool ProcessorRunsOrders();

}  // namespace deltawire::stress
