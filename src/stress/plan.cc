#include "stress/plan.h"

#include <fmt/format.h>

#include "base/rng.h"

namespace deltawire::stress {
namespace {

std::string_view NameOf(Generator generator) {
  switch (generator) {
    case Generator::kNatural: return "natural";
    case Generator::kSmall: return "small";
    case Generator::kAdversarial: return "adversarial";
    case Generator::kWild: return "wild";
  }
  return "";
}

std::string_view NameOf(Order order) {
  switch (order) {
    case Order::kTorchSingle: return "torch_single";
    case Order::kTorchForeach: return "torch_foreach";
    case Order::kTorchCapturable: return "torch_capturable";
    case Order::kTorchFusedCuda: return "torch_fused_cuda";
    case Order::kTransformerEngine: return "transformer_engine";
    case Order::kApexFast: return "apex_fast";
    case Order::kDeepSpeedCpu: return "deepspeed_cpu";
    case Order::kBitsAndBytes: return "bitsandbytes";
    case Order::kTriton: return "triton";
    case Order::kSgd: return "sgd";
    case Order::kSgdMomentum: return "sgd_momentum";
    case Order::kSgdNesterov: return "sgd_nesterov";
  }
  return "";
}

std::string_view NameOf(Moments moments) {
  switch (moments) {
    case Moments::kF32: return "f32";
    case Moments::kBf16: return "bf16";
    case Moments::kBf16First: return "bf16_m";
    case Moments::kBf16Second: return "bf16_v";
  }
  return "";
}

std::string_view NameOf(Flush flush) {
  switch (flush) {
    case Flush::kNowhere: return "nowhere";
    case Flush::kStep: return "step";
    case Flush::kStepAndDetector: return "step_and_detector";
  }
  return "";
}

std::string_view NameOf(Power power) {
  switch (power) {
    case Power::kDouble: return "double";
    case Power::kFloat: return "float";
    case Power::kRunning: return "running";
    case Power::kFast: return "fast";
    case Power::kNone: return "none";
  }
  return "";
}

std::string_view NameOf(Mode mode) {
  switch (mode) {
    case Mode::kDecoupled: return "decoupled";
    case Mode::kL2: return "l2";
    case Mode::kAmsgrad: return "amsgrad";
    case Mode::kMaximize: return "maximize";
  }
  return "";
}

constexpr std::array kGeneratorCycle = {Generator::kNatural,     Generator::kAdversarial, Generator::kWild,
                                        Generator::kAdversarial, Generator::kNatural,     Generator::kSmall,
                                        Generator::kWild,        Generator::kAdversarial};
constexpr std::array<uint32_t, 5> kIntervals = {1, 2, 4, 8, 32};

}  // namespace

BatchPlan MakePlan(uint64_t seed, uint64_t number) {
  BatchPlan plan;
  plan.seed = seed;
  plan.number = number;
  // 2304 numbers go once through generator, order, moments, contraction and flushing. The latter three start
  // elsewhere for each order, so that a short run sees all of their values.
  const uint64_t order = number / kGeneratorCycle.size() % kOrders;
  const uint64_t round = number / (kGeneratorCycle.size() * kOrders) + order;
  plan.generator = kGeneratorCycle[number % kGeneratorCycle.size()];
  plan.order = static_cast<Order>(order);
  plan.moments = static_cast<Moments>(round % kMoments);
  plan.contracted = round / kMoments % 2 != 0;
  plan.flush = static_cast<Flush>(round / (2 * kMoments) % kFlushes);

  SeededRng rng((seed + 0x5851F42D4C957F2D) ^ (number + 1) * 0x9E3779B97F4A7C15);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>((rng.Next() >> 32) * n >> 32); };
  plan.power = static_cast<Power>(below(kPowers));
  plan.mode = static_cast<Mode>(below(kModes));
  plan.float_scalars = below(2) == 0;
  plan.reference = below(16) == 0;
  const bool watched = below(4) == 0;
  const uint32_t interval = kIntervals[below(kIntervals.size())];
  const bool half_up = below(8) == 0;
  if (watched) {
    plan.interval = interval;
  } else if (half_up) {  // TensorWatch serves weights rounded to even
    plan.rounding = Rounding::kHalfUp;
  }
  if (IsSgd(plan.order)) {
    plan.moments = Moments::kF32;
    plan.power = Power::kNone;
    if (plan.mode == Mode::kAmsgrad) plan.mode = Mode::kDecoupled;
  }
  return plan;
}

std::vector<std::pair<std::string_view, std::string>> LabelsOf(const BatchPlan& plan) {
  return {
      {"generator", std::string(NameOf(plan.generator))},
      {"order", std::string(NameOf(plan.order))},
      {"contraction", plan.contracted ? "fused" : "off"},
      {"flush", std::string(NameOf(plan.flush))},
      {"moments", std::string(NameOf(plan.moments))},
      {"power", std::string(NameOf(plan.power))},
      {"mode", std::string(NameOf(plan.mode))},
      {"rounding", plan.rounding == Rounding::kHalfUp ? "half_up" : "nearest_even"},
      {"kernels", plan.reference ? "reference" : "shipped"},
      {"interval", plan.interval == 0 ? "single_step" : fmt::format("{}", plan.interval)},
      {"generator/moments", fmt::format("{}/{}", NameOf(plan.generator), NameOf(plan.moments))},
      {"class", fmt::format("{}/{}/{}", NameOf(plan.generator), NameOf(plan.order), NameOf(plan.moments))},
  };
}

}  // namespace deltawire::stress
