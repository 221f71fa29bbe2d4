#include "stress/run_batch.h"

namespace deltawire::stress {

Result<BatchResult> RunBatch(const BatchPlan& plan, const Subject& subject) {
  Scene scene(plan);
  if (plan.interval != 0) return JudgeWatch(plan, subject, scene);
  BatchResult result;
  KernelJudge judge(plan, subject, scene.elements());
  for (uint64_t step = 0; step < scene.steps(); ++step) {
    scene.Step();
    judge.Judge(scene, step, result);
  }
  return result;
}

}  // namespace deltawire::stress
