#include "python/watching.h"

namespace deltawire::python {

namespace nb = nanobind;

namespace {

detect::AdamStep AdamFrom(const nb::tuple& rule) {
  detect::AdamStep step;
  const auto [lr, weight_decay, beta1, beta2, eps, bias_correction] =
      nb::cast<std::tuple<double, double, double, double, double, bool>>(rule[1]);
  step.hyper = {.lr = lr,
                .weight_decay = weight_decay,
                .beta1 = beta1,
                .beta2 = beta2,
                .eps = eps,
                .step = 0,
                .bias_correction = bias_correction};
  step.m = nb::cast<TensorRef>(rule[2]).view;
  step.v = nb::cast<TensorRef>(rule[3]).view;
  return step;
}

detect::SgdStep SgdFrom(const nb::tuple& rule) {
  detect::SgdStep step;
  const auto [lr, weight_decay, mu] = nb::cast<std::tuple<double, double, double>>(rule[1]);
  step.hyper = {.lr = lr, .weight_decay = weight_decay, .mu = mu};
  step.x = nb::cast<TensorRef>(rule[2]).view;
  if (!rule[3].is_none()) step.y = nb::cast<TensorRef>(rule[3]).view;
  return step;
}

}  // namespace

detect::Method MethodOrThrow(const std::string& name) {
  if (const auto method = detect::MethodFromName(name)) return *method;
  throw CoreError(
      Error(Code::kInvalidArgument,
            fmt::format("detector {} is not one of inversion, capture, copy_back, snapshot, fence", name)));
}

std::vector<detect::TensorStep> StepsFrom(const std::vector<StepTuple>& observed) {
  std::vector<detect::TensorStep> steps;
  steps.reserve(observed.size());
  for (const auto& [tensor, counter, rule, refusal] : observed) {
    detect::TensorStep& out = steps.emplace_back();
    out.tensor = tensor;
    out.step.counter = counter;
    out.step.refusal = refusal;
    if (rule.is_none()) continue;
    const auto parts = nb::cast<nb::tuple>(rule);
    const auto kind = nb::cast<std::string>(parts[0]);
    if (kind == "adam" && parts.size() == 4) {
      out.step.state = AdamFrom(parts);
    } else if (kind == "sgd" && parts.size() == 4) {
      out.step.state = SgdFrom(parts);
    } else {
      throw CoreError(Error(Code::kInvalidArgument, fmt::format("a step can't be undone by rule {}", kind)));
    }
  }
  return steps;
}

}  // namespace deltawire::python
