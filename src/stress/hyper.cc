#include "stress/hyper.h"

#include <cmath>
#include <initializer_list>

namespace deltawire::stress {
namespace {

template <class T>
T Pick(Rng& rng, std::initializer_list<T> values) {
  return values.begin()[(rng.Next() >> 32) * values.size() >> 32];
}
double Sign(Rng& rng) { return rng.Next() >> 63 != 0 ? -1.0 : 1.0; }

constexpr double kRoundOff = 0x1p-24;  // of float32

}  // namespace

Hyper DrawHyper(const BatchPlan& plan, Rng& rng) {
  Hyper hyper;
  kernels::AdamwHyper& h = hyper.adamw;
  h.bias_correction = plan.power != Power::kNone;
  if (plan.generator == Generator::kNatural || plan.generator == Generator::kSmall) {
    h.lr = Pick(rng, {1e-6, 3e-6, 1e-5});
    h.weight_decay = Pick(rng, {0.0, 0.01, 0.1});
    h.beta2 = Pick(rng, {0.95, 0.999});
    h.step = Pick<uint64_t>(rng, {1, 1000});
    hyper.momentum = 0.9;
    // SGD's gradients are not normalised; this gives updates of the same sizes.
    if (IsSgd(plan.order)) h.lr *= 1000;
  } else {
    h.lr = Pick(rng, {0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1});
    h.weight_decay = Pick(rng, {0.0, 0.01, 0.1, 1.0, 5.0});
    switch (rng.Next() >> 62) {
      case 0:  // as schedulers leave it
        h.lr *= static_cast<double>(rng.Next() >> 40) * 0x1p-24;
        break;
      case 1:  // 1 - lambda rounds by nearly half a unit
        if (h.lr * h.weight_decay > 0 && h.lr * h.weight_decay < 0.4) {
          h.lr = (std::floor(h.lr * h.weight_decay * 0x1p24) + 0.499) * 0x1p-24 / h.weight_decay;
        }
        break;
      default: break;
    }
    h.beta1 = Pick(rng, {0.0, 0.8, 0.9, 0.95, 0.99, 0.999});
    h.beta2 = Pick(rng, {0.95, 0.98, 0.99, 0.999, 0.9999});
    h.eps = Pick(rng, {1e-5, 1e-8, 1e-12, 1e-15, 1e-20});
    h.step = Pick<uint64_t>(rng, {1, 2, 3, 10, 100, 1000, 20000});
    hyper.momentum = Pick(rng, {0.0, 0.5, 0.9, 0.99, 1.0});
  }
  // With L2 the decay is inside the moments; so it is inside the buffer of SGD with momentum.
  if (plan.mode == Mode::kL2 || plan.order == Order::kSgdMomentum) h.weight_decay = 0;
  return hyper;
}

double PowerBy(Power power, double beta, uint64_t step, Rng& rng) {
  const auto t = static_cast<double>(step);
  switch (power) {
    case Power::kNone:
    case Power::kDouble: return std::pow(beta, t);
    case Power::kFloat: {
      const double exact = std::pow(static_cast<double>(static_cast<float>(beta)), t);
      return static_cast<float>(exact * (1 + Sign(rng) * 8 * kRoundOff));
    }
    case Power::kRunning: {
      const auto factor = static_cast<float>(beta);
      float product = 1;
      // Past 2^-30 the product no longer changes 1 - product.
      for (uint64_t i = 0; i < step && product > 0x1p-60f; ++i) product *= factor;
      return product;
    }
    case Power::kFast: {
      // A fast log2 is up to 2^-22 off, a fast exp2 up to 2 units.
      const double log = std::log2(static_cast<double>(static_cast<float>(beta))) + Sign(rng) * 0x1p-22;
      const float exponent = static_cast<float>(log) * static_cast<float>(step);
      return static_cast<float>(std::exp2(static_cast<double>(exponent)) * (1 + Sign(rng) * 4 * kRoundOff));
    }
  }
  return 0;
}

StepScalars MakeStepScalars(const BatchPlan& plan, const Hyper& hyper, Rng& rng) {
  const kernels::AdamwHyper& h = hyper.adamw;
  const double power1 = PowerBy(plan.power, h.beta1, h.step, rng);
  const double power2 = PowerBy(plan.power, h.beta2, h.step, rng);
  StepScalars s{};
  s.lambda = h.lr * h.weight_decay;
  s.lr = static_cast<float>(h.lr);
  s.decay = static_cast<float>(h.weight_decay);
  s.eps = static_cast<float>(h.eps);
  s.momentum = static_cast<float>(hyper.momentum);
  if (plan.float_scalars) {
    s.factor = 1.0f - s.lr * s.decay;
    s.bc1 = 1.0f - static_cast<float>(power1);
    s.bc2 = 1.0f - static_cast<float>(power2);
    s.step_size = s.lr / s.bc1;
    s.root_bc2 = std::sqrt(s.bc2);
  } else {
    s.factor = static_cast<float>(1 - s.lambda);
    s.bc1 = static_cast<float>(1 - power1);
    s.bc2 = static_cast<float>(1 - power2);
    s.step_size = static_cast<float>(h.lr / (1 - power1));
    s.root_bc2 = static_cast<float>(std::sqrt(1 - power2));
  }
  if (!h.bias_correction) {
    s.bc1 = s.bc2 = s.root_bc2 = 1;
    s.step_size = s.lr;
  }
  return s;
}

}  // namespace deltawire::stress
