#include "detect/optimizer_step.h"

#include "base/status.h"

namespace deltawire::detect {
namespace {

std::string StateRefusal(const TensorView& state, const char* what, bool bf16_allowed, const Shape& shape) {
  if (state.shape != shape) {
    return fmt::format("its optimizer state {} has shape {}, the weights have {}", what,
                       ShapeText(state.shape), ShapeText(shape));
  }
  if (state.dtype == Dtype::kF32 || (bf16_allowed && state.dtype == Dtype::kBf16)) return {};
  return fmt::format("its optimizer state {} is {}, not F32{}", what, DtypeName(state.dtype),
                     bf16_allowed ? " or BF16" : "");
}

void Undo(const AdamStep& step, uint64_t counter, const Shape& shape, StepRecord& out) {
  for (const auto& [view, what] : {std::pair(&step.m, "exp_avg"), std::pair(&step.v, "exp_avg_sq")}) {
    out.refusal = StateRefusal(*view, what, true, shape);
    if (!out.refusal.empty()) return;
  }
  kernels::AdamwHyper hyper = step.hyper;
  hyper.step = counter;
  const auto band = kernels::MakeAdamwBand(
      hyper, kernels::MomentError(step.m.dtype == Dtype::kBf16, step.v.dtype == Dtype::kBf16));
  if (band) {
    out.undo = StepRecord::Adam{step.m, step.v, *band};
  } else {
    out.refusal = band.error();
  }
}

void Undo(const SgdStep& step, const Shape& shape, StepRecord& out) {
  out.refusal = StateRefusal(step.x, step.y ? "gradient" : "momentum_buffer", false, shape);
  if (out.refusal.empty() && step.y) out.refusal = StateRefusal(*step.y, "momentum_buffer", false, shape);
  if (!out.refusal.empty()) return;
  const auto band = kernels::MakeSgdBand(step.hyper);
  if (band) {
    out.undo = StepRecord::Sgd{step.x, step.y, *band};
  } else {
    out.refusal = band.error();
  }
}

}  // namespace

StepRecord MakeStepRecord(const OptimizerStep& step, const Shape& shape) {
  StepRecord out;
  out.counter = step.counter;
  if (const auto* adam = std::get_if<AdamStep>(&step.state)) {
    Undo(*adam, step.counter, shape, out);
  } else if (const auto* sgd = std::get_if<SgdStep>(&step.state)) {
    Undo(*sgd, shape, out);
  } else {
    out.refusal = step.refusal;
  }
  return out;
}

}  // namespace deltawire::detect
