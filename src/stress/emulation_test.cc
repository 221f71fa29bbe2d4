// The emulated steps are the optimizers' up to rounding, differ where they should, and the oracle's casts are
// right.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "stress/flush_scope.h"
#include "stress/hyper.h"
#include "stress/oracle.h"
#include "stress/step_orders.h"

namespace deltawire::stress {
namespace {

constexpr uint32_t kElements = 1000;

struct Inputs {
  std::vector<float> theta, first, second;
};

Inputs Draw(bool sgd) {
  SeededRng rng(11);
  const auto uniform = [&] { return static_cast<double>(rng.Next() >> 11) * 0x1p-53; };
  Inputs inputs;
  for (uint32_t i = 0; i < kElements; ++i) {
    inputs.theta.push_back(static_cast<float>(uniform() - 0.5));
    inputs.first.push_back(static_cast<float>((uniform() - 0.5) * (sgd ? 1 : 1e-3)));
    inputs.second.push_back(static_cast<float>(sgd ? uniform() - 0.5 : 1e-6 * uniform()));
  }
  return inputs;
}

double InDouble(Order order, const Hyper& hyper, double theta, double first, double second) {
  const kernels::AdamwHyper& h = hyper.adamw;
  switch (order) {
    case Order::kSgd: return theta - h.lr * (first + h.weight_decay * theta);
    case Order::kSgdMomentum: return theta - h.lr * first;
    case Order::kSgdNesterov:
      return theta - h.lr * (first + h.weight_decay * theta + hyper.momentum * second);
    default: break;
  }
  const double t = static_cast<double>(h.step);
  const double bc1 = 1 - std::pow(h.beta1, t), bc2 = 1 - std::pow(h.beta2, t);
  const double u = h.lr / bc1 * first / (std::sqrt(second / bc2) + h.eps);
  const double c = 1 - h.lr * h.weight_decay;
  return order == Order::kBitsAndBytes ? (theta - u) * c : theta * c - u;
}

class EveryOrder : public testing::TestWithParam<int> {};

TEST_P(EveryOrder, IsTheOptimizerUpToRounding) {
  BatchPlan plan;
  plan.order = static_cast<Order>(GetParam());
  Hyper hyper;
  hyper.adamw.lr = 0.05;  // large updates, so that fused and separate products differ often
  hyper.adamw.weight_decay = plan.order == Order::kSgdMomentum ? 0 : 0.1;
  hyper.adamw.step = 20;
  hyper.momentum = 0.9;
  const Inputs inputs = Draw(IsSgd(plan.order));
  for (const bool float_scalars : {false, true}) {
    plan.float_scalars = float_scalars;
    SeededRng rng(1);
    const StepScalars scalars = MakeStepScalars(plan, hyper, rng);
    std::vector<float> plain = inputs.theta, contracted = inputs.theta;
    PlainLoop(plan.order)(scalars, inputs.first.data(), inputs.second.data(), plain.data(), kElements);
    ContractedLoop(plan.order)(scalars, inputs.first.data(), inputs.second.data(), contracted.data(),
                               kElements);
    uint32_t differ = 0;
    for (uint32_t i = 0; i < kElements; ++i) {
      const double exact = InDouble(plan.order, hyper, inputs.theta[i], inputs.first[i], inputs.second[i]);
      const double bound =
          16 * 0x1p-24 * (std::fabs(inputs.theta[i]) + std::fabs(exact - inputs.theta[i]) + 0.1);
      ASSERT_NEAR(plain[i], exact, bound) << i;
      ASSERT_NEAR(contracted[i], exact, bound) << i;
      differ += plain[i] != contracted[i] ? 1 : 0;
    }
    // DeepSpeed's kernel is fused by hand, and torch's on CUDA has one product, in double: nothing to
    // contract.
    if (plan.order == Order::kDeepSpeedCpu) {
      EXPECT_EQ(differ, 0u);
    } else if (plan.order != Order::kTorchFusedCuda) {
      EXPECT_GT(differ, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Emulation, EveryOrder, testing::Range(0, kOrders));

// The bound that the band has for it: 12 and 6 round-offs of the logarithm (half of 12 under the root).
TEST(Emulation, PowersErrAsMuchAsTheBandAllows) {
  SeededRng rng(3);
  double worst = 0;
  for (int round = 0; round < 100; ++round) {
    for (const double beta : {0.0, 0.8, 0.9, 0.95, 0.999, 0.9999}) {
      for (const uint64_t t : {1, 2, 3, 10, 100, 1000, 20000}) {
        const double exact = 1 - std::pow(beta, static_cast<double>(t));
        EXPECT_EQ(1 - PowerBy(Power::kDouble, beta, t, rng), exact);
        for (const Power power : {Power::kFloat, Power::kRunning, Power::kFast}) {
          const double error = std::fabs((1 - PowerBy(power, beta, t, rng)) / exact - 1);
          const double bound = 12 * 0x1p-24 / (1 - beta);
          EXPECT_LE(error, bound) << beta << " " << t;
          worst = std::max(worst, error / bound);
        }
      }
    }
  }
  EXPECT_GT(worst, 0.6);
}

TEST(Emulation, FlushesWhereItIsAskedTo) {
  volatile float least = std::numeric_limits<float>::min();
  const auto half = [&] { return least * 0.5f; };
  EXPECT_GT(half(), 0.0f);
  {
    const FlushScope flush(true);
    EXPECT_EQ(std::bit_cast<uint32_t>(half()), 0u);
    const FlushScope inner(false);
  }
  EXPECT_GT(half(), 0.0f);
}

uint16_t Exported(uint32_t bits, bool half_up) {
  const float theta = std::bit_cast<float>(bits);
  uint16_t served = 0;
  Export(&theta, half_up, &served, 1);
  return served;
}

TEST(Oracle, RoundsToEvenOrHalfUp) {
  EXPECT_EQ(Exported(0x3F807FFF, false), 0x3F80);
  EXPECT_EQ(Exported(0x3F808000, false), 0x3F80);
  EXPECT_EQ(Exported(0x3F818000, false), 0x3F82);
  EXPECT_EQ(Exported(0x3F808001, false), 0x3F81);
  EXPECT_EQ(Exported(0x3F808000, true), 0x3F81);
  EXPECT_EQ(Exported(0xBF808000, true), 0xBF81);
  EXPECT_EQ(Exported(0x3F807FFF, true), 0x3F80);
  for (const bool half_up : {false, true}) {
    EXPECT_EQ(Exported(0x80000000, half_up), 0x8000);
    EXPECT_EQ(Exported(0x00000001, half_up), 0x0000);
    EXPECT_EQ(Exported(0x00018000, half_up), 0x0002);
    EXPECT_EQ(Exported(0x7F800000, half_up), 0x7F80);
    EXPECT_EQ(Exported(0x7F7FFFFF, half_up), 0x7F80);
    EXPECT_EQ(Exported(0x7F800001, half_up), 0xFFFF);
    EXPECT_EQ(Exported(0xFFC00000, half_up), 0xFFFF);
  }
}

TEST(Oracle, CountsMissedAndExcess) {
  const std::vector<uint16_t> before = {1, 2, 3, 4, 0x8000}, after = {1, 3, 3, 5, 0x0000};
  const std::vector<uint8_t> marked = {0, 1, 1, 0, 0};
  const Comparison comparison = Compare(before.data(), after.data(), marked.data(), 5);
  EXPECT_EQ(comparison.changed, 3u);
  EXPECT_EQ(comparison.missed, 2u);
  EXPECT_EQ(comparison.excess, 1u);
}

}  // namespace
}  // namespace deltawire::stress
