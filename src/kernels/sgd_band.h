// Hyperparameters of one SGD step -> constants of the guarded inversion. Proof: docs/numerics.md.
#pragma once

#include <string_view>

#include <tl/expected.hpp>

#include "kernels/kernels.h"

namespace deltawire::kernels {

// theta' = theta - lr (x + mu y + weight_decay theta), with the numbers that the step used:
//   momentum:    x the buffer after the step, weight_decay 0 (it is inside the buffer), no y
//   no momentum: x the step's gradient, no y
//   Nesterov:    x the step's gradient, y the buffer after the step, mu the momentum
// A step that maximizes uses -gradient: where x is a gradient, negate lr, weight_decay and mu instead.
struct SgdHyper {
  double lr = 0;
  double weight_decay = 0;
  double mu = 0;  // factor of y
};

// The band, or which precondition of the proof fails (a phrase for a report; static storage).
tl::expected<SgdBand, std::string_view> MakeSgdBand(const SgdHyper& hyper);

}  // namespace deltawire::kernels
