// Detection is sound in a hundred million element-steps, and each constant of its proof that is made smaller
// is found out: the program can fail.
#include <gtest/gtest.h>

#include <cstdio>

#include "stress/run.h"
#include "stress/run_batch.h"

namespace deltawire::stress {
namespace {

constexpr uint64_t kSeed = 20261130;
constexpr double kRoundOff = 0x1p-24;

std::string Text(const std::optional<Failure>& failure) {
  if (!failure) return "";
  std::string text = failure->what;
  for (const auto& [name, value] : failure->facts) text += " " + name + "=" + value;
  return text;
}

TEST(Stress, NothingIsMissedInAHundredMillionElementSteps) {
  Progress progress;
  progress.seed = kSeed;
  RunOptions options;
  options.end_batch = BatchesFor(100'000'000);
  options.parallel = Parallel(2);
  const Status status = stress::Run(options, Subject{}, SystemClock(), progress);
  ASSERT_TRUE(status) << status.error().message();
  const Tally& all = progress.totals.all;
  std::printf(
      "seed %llu: %llu element-steps in %.1f s; plain inversion missed %llu, in double %llu; "
      "errors of up to %.4f bands\n",
      static_cast<unsigned long long>(kSeed), static_cast<unsigned long long>(all.elements), progress.seconds,
      static_cast<unsigned long long>(all.naive_false_negatives),
      static_cast<unsigned long long>(all.naive_fp64_false_negatives), all.worst_band_ratio);
  EXPECT_GE(all.elements, 100'000'000u);
  EXPECT_EQ(all.failures(), 0u) << Text(progress.totals.first_failure);
  // The data are sharp: without a band they are not recovered.
  EXPECT_GT(all.naive_false_negatives, 1'000'000u);
  EXPECT_GT(all.naive_fp64_false_negatives, 1'000'000u);
  EXPECT_GT(all.changed, all.elements / 10);
  // And come close to what the proof allows; above 1 is a failure.
  EXPECT_GT(all.worst_band_ratio, 0.9);
  for (const auto& [dimension, values] : progress.totals.by) {
    for (const auto& [value, tally] : values) EXPECT_GT(tally.certificates, 0u) << dimension << " " << value;
  }
  const auto& natural = progress.totals.by.at("generator/moments");
  const auto share = [](const Tally& tally) {
    return static_cast<double>(tally.excess) / static_cast<double>(tally.elements);
  };
  EXPECT_LE(share(natural.at("natural/f32")), 1e-4);
  EXPECT_LE(share(natural.at("natural/bf16")), 5e-4);
  EXPECT_GT(natural.at("natural/f32").naive_false_negatives, 0u);
}

// ---- the program finds what is wrong

using Narrowing = void (*)(kernels::AdamwBand& band, const kernels::AdamwHyper& hyper);

Subject WithBand(Narrowing narrow) {
  Subject subject;
  subject.adamw_band = [narrow](const kernels::AdamwHyper& hyper, double moment_error) {
    auto band = kernels::MakeAdamwBand(hyper, moment_error);
    if (band) narrow(*band, hyper);
    return band;
  };
  return subject;
}

// The first `batches` plans of `generator`, as `change` leaves them. change: false drops the plan.
template <class Change>
Tally Try(const Subject& subject, Generator generator, uint64_t batches, Change change) {
  Tally sum;
  for (uint64_t number = 0; batches > 0; ++number) {
    BatchPlan plan = MakePlan(kSeed, number);
    if (plan.generator != generator || !change(plan)) continue;
    const auto result = RunBatch(plan, subject);
    EXPECT_TRUE(result);
    sum += result->tally;
    --batches;
  }
  std::printf(
      "%llu element-steps: missed %llu, wrong certificates %llu, given up %llu\n",
      static_cast<unsigned long long>(sum.elements), static_cast<unsigned long long>(sum.false_negatives),
      static_cast<unsigned long long>(sum.wrong_certificates), static_cast<unsigned long long>(sum.refused));
  return sum;
}

bool IsAdam(const BatchPlan& plan) { return !IsSgd(plan.order); }

bool TorchSingle(BatchPlan& plan) {
  plan.order = Order::kTorchSingle;
  plan.contracted = false;
  plan.mode = Mode::kDecoupled;
  plan.moments = Moments::kF32;
  plan.interval = 0;
  return true;
}

bool FastPower(BatchPlan& plan) {
  plan.power = Power::kFast;
  return IsAdam(plan);
}

bool Bf16Moments(BatchPlan& plan) {
  plan.moments = Moments::kBf16;
  return IsAdam(plan);
}

bool HalfUp(BatchPlan& plan) {
  plan.rounding = Rounding::kHalfUp;
  plan.interval = 0;
  return true;
}

TEST(StressFinds, AnLrOnePercentTooSmall) {
  Subject subject;
  subject.adamw_band = [](kernels::AdamwHyper hyper, double moment_error) {
    hyper.lr *= 0.99;
    return kernels::MakeAdamwBand(hyper, moment_error);
  };
  const auto one_step = [](BatchPlan& plan) {
    plan.interval = 0;
    return IsAdam(plan);
  };
  const Tally tally = Try(subject, Generator::kNatural, 20, one_step);
  EXPECT_GT(tally.false_negatives, 0u);
  EXPECT_GT(tally.wrong_certificates, 0u);
  // TensorWatch's own check of its digest gives such blocks up.
  const auto watched = [](BatchPlan& plan) {
    plan.interval = 4;
    return IsAdam(plan);
  };
  EXPECT_GT(Try(subject, Generator::kNatural, 20, watched).failures(), 0u);
}

TEST(StressFinds, TooSmallAnErrorOfBf16Moments) {
  Subject subject;
  subject.adamw_band = [](const kernels::AdamwHyper& hyper, double moment_error) {
    return kernels::MakeAdamwBand(hyper, moment_error == 0 ? 0 : 0.0031);
  };
  EXPECT_GT(Try(subject, Generator::kAdversarial, 20, Bf16Moments).false_negatives, 0u);
}

TEST(StressFinds, ABandWithTooFewRoundingsOfTheWeight) {
  const auto quarter = WithBand([](kernels::AdamwBand& band, const auto&) { band.a *= 2.25f / 3; });
  const auto half = WithBand([](kernels::AdamwBand& band, const auto&) { band.a *= 1.5f / 3; });
  const auto two_thirds = WithBand([](kernels::AdamwBand& band, const auto&) { band.a *= 1.0f / 3; });
  const Tally least = Try(quarter, Generator::kAdversarial, 300, TorchSingle);
  const Tally more = Try(half, Generator::kAdversarial, 20, TorchSingle);
  const Tally most = Try(two_thirds, Generator::kAdversarial, 20, TorchSingle);
  EXPECT_GT(least.false_negatives, 0u);
  EXPECT_GT(least.outside_band, 0u);
  EXPECT_GT(more.false_negatives, least.false_negatives);
  EXPECT_GT(most.false_negatives, more.false_negatives);
}

TEST(StressFinds, TooSmallAnErrorOfAFastPower) {
  const Subject subject = WithBand([](kernels::AdamwBand& band, const kernels::AdamwHyper& h) {
    const double c = 1 - h.lr * h.weight_decay;
    const double surplus = kRoundOff * (11 / (1 - h.beta1) + 5 / (1 - h.beta2));  // P = (1, 1) for (12, 6)
    band.b = static_cast<float>(band.b - 1.001 * surplus / c);
  });
  EXPECT_GT(Try(subject, Generator::kAdversarial, 20, FastPower).false_negatives, 0u);
}

TEST(StressFinds, ABandWithoutItsFloor) {
  const Subject subject = WithBand([](kernels::AdamwBand& band, const auto&) { band.c = 0; });
  EXPECT_GT(Try(subject, Generator::kWild, 20, IsAdam).false_negatives, 0u);
}

TEST(StressFinds, ABandWithoutDecayAfterTheUpdate) {
  const Subject subject = WithBand([](kernels::AdamwBand& band, const kernels::AdamwHyper& h) {
    const double lambda = h.lr * h.weight_decay;
    band.b = static_cast<float>(band.b - 1.001 * 2 * lambda / (1 - lambda));
  });
  const auto decay_last = [](BatchPlan& plan) {
    plan.order = Order::kBitsAndBytes;
    plan.mode = Mode::kDecoupled;
    return true;
  };
  const Tally tally = Try(subject, Generator::kAdversarial, 40, decay_last);
  EXPECT_GT(tally.false_negatives + tally.wrong_certificates, 0u);
}

TEST(StressFinds, TiesWhereTheExporterRoundsHalfUp) {
  Subject subject;
  subject.doubts_ties = false;
  EXPECT_GT(Try(subject, Generator::kAdversarial, 20, HalfUp).false_negatives, 0u);
}

TEST(StressFinds, ZerosThatNobodyCompares) {
  Subject subject;
  subject.compares_small = false;
  const auto one_step = [](BatchPlan& plan) {
    plan.interval = 0;
    return true;
  };
  EXPECT_GT(Try(subject, Generator::kWild, 20, one_step).false_negatives, 0u);
}

TEST(StressFinds, AnSgdBandWithTooFewRoundings) {
  const auto all = [](BatchPlan& plan) { return IsSgd(plan.order); };
  Subject weight;
  weight.sgd_band = [](const kernels::SgdHyper& hyper) {
    auto band = kernels::MakeSgdBand(hyper);
    if (band) band->a *= 0.25f;
    return band;
  };
  EXPECT_GT(Try(weight, Generator::kAdversarial, 20, all).false_negatives, 0u);
  Subject update;
  update.sgd_band = [](const kernels::SgdHyper& hyper) {
    auto band = kernels::MakeSgdBand(hyper);
    if (band) band->b = 0;
    return band;
  };
  EXPECT_GT(Try(update, Generator::kAdversarial, 20, all).false_negatives, 0u);
}

TEST(StressFinds, ADetectorThatDeclines) {
  Subject subject;
  subject.adamw_band = [](const auto&, double) -> tl::expected<kernels::AdamwBand, std::string_view> {
    return tl::make_unexpected("out of order");
  };
  EXPECT_GT(Try(subject, Generator::kNatural, 2, IsAdam).refused, 0u);
}

}  // namespace
}  // namespace deltawire::stress
