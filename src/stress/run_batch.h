// One batch: inputs, the steps, the detector, the verdict.
#pragma once

#include "base/status.h"
#include "stress/judge.h"
#include "stress/plan.h"
#include "stress/subject.h"

namespace deltawire::stress {

// kBatchElements element-steps. Needs ProcessorRunsOrders(). Leaves the processor's rounding state as it was.
// Errors are those of memory or of a detector that returns one, not of what is tested.
Result<BatchResult> RunBatch(const BatchPlan& plan, const Subject& subject);

}  // namespace deltawire::stress
