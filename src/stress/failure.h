// Turns one element's step into a reproducible case.
#pragma once

#include <string>

#include "stress/plan.h"
#include "stress/scene.h"
#include "stress/tally.h"

namespace deltawire::stress {

// element: of the scene's last step. before, after: its true served bits. verdict: what the detector said.
Failure DescribeFailure(const BatchPlan& plan, const Scene& scene, uint64_t step, uint32_t element,
                        std::string what, uint16_t before, uint16_t after, std::string verdict);

}  // namespace deltawire::stress
