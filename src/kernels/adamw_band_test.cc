#include "kernels/adamw_band.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deltawire::kernels {
namespace {

AdamwHyper Usual() {
  return {.lr = 1e-6, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 100};
}

TEST(MakeAdamwBandTest, ConstantsOfAUsualStep) {
  const auto band = MakeAdamwBand(Usual());
  ASSERT_TRUE(band.has_value());
  const double lambda = 1e-7, e = std::ldexp(1.0, -24);
  EXPECT_FLOAT_EQ(band->k1, 1.0000001e-7f);
  EXPECT_FLOAT_EQ(band->k2, 1.0000001f);
  EXPECT_FLOAT_EQ(band->s, static_cast<float>(1e-6 / (1 - std::pow(0.9, 100))));
  EXPECT_FLOAT_EQ(band->r, static_cast<float>(1 / (1 - std::pow(0.95, 100))));
  EXPECT_FLOAT_EQ(band->eps, 1e-8f);
  EXPECT_FLOAT_EQ(band->a, static_cast<float>(3.003 * e * (1 + lambda) + 8 * e * lambda));
  // 2^-19 + e (12 / 0.1 + 6 / 0.05) + 2 lambda, and 10 e beside it.
  EXPECT_FLOAT_EQ(band->b,
                  static_cast<float>(1.001 * (10 * e + std::ldexp(1.0, -19) + e * 240 + 2 * lambda)));
  EXPECT_NEAR(band->c, std::ldexp(1.0, -124) * 1e8, std::ldexp(1.0, -124) * 1e5);
  EXPECT_FALSE(band->tiny_eps);
}

TEST(MakeAdamwBandTest, WithoutBiasCorrectionTheFactorsAreOne) {
  AdamwHyper hyper = Usual();
  hyper.bias_correction = false;
  const auto band = MakeAdamwBand(hyper);
  ASSERT_TRUE(band.has_value());
  EXPECT_EQ(band->s, 1e-6f);
  EXPECT_EQ(band->r, 1.0f);
}

TEST(MakeAdamwBandTest, StoredMomentsWidenTheBandOfTheUpdate) {
  const auto exact = MakeAdamwBand(Usual()), rounded = MakeAdamwBand(Usual(), 0.006);
  ASSERT_TRUE(exact && rounded);
  EXPECT_NEAR(rounded->b - exact->b, 0.006, 1e-4);
  EXPECT_EQ(rounded->a, exact->a);
}

// Half a unit in the last of the eight bits is 2^-8 of the least mantissa; under the root it is halved.
TEST(MomentErrorTest, ExceedsWhatRoundingToBf16CanDo) {
  const double least = std::ldexp(1.0, -8), root = 1 / std::sqrt(1 - least) - 1;
  EXPECT_EQ(MomentError(false, false), 0.0);
  EXPECT_GT(MomentError(true, false), least);
  EXPECT_GT(MomentError(false, true), root);
  EXPECT_GT(MomentError(true, true), (1 + least) * (1 + root) - 1);
  EXPECT_LT(MomentError(true, true), 1.05 * (least + root));
}

TEST(MakeAdamwBandTest, TinyEpsIsMarked) {
  AdamwHyper hyper = Usual();
  hyper.eps = std::ldexp(1.0, -36);
  EXPECT_FALSE(MakeAdamwBand(hyper)->tiny_eps);
  hyper.eps = 1e-12;
  EXPECT_TRUE(MakeAdamwBand(hyper)->tiny_eps);
}

// What a float32 register of less than 2^-134 moved while BF16 stored it as zero.
TEST(MakeAdamwBandTest, ZeroMomentsProveNothingWhereRoundedOnesMayHaveMovedTheWeight) {
  AdamwHyper hyper = Usual();
  EXPECT_TRUE(MakeAdamwBand(hyper)->idle_stays);
  EXPECT_TRUE(MakeAdamwBand(hyper, kBf16Moments)->idle_stays);
  hyper.eps = 1e-15;  // lr / eps = 1e9
  EXPECT_TRUE(MakeAdamwBand(hyper)->idle_stays);
  EXPECT_FALSE(MakeAdamwBand(hyper, kBf16Moments)->idle_stays);
  EXPECT_FALSE(MakeAdamwBand(hyper, kBf16M)->idle_stays);
}

TEST(MakeAdamwBandTest, EdgesOfThePreconditionsHold) {
  AdamwHyper hyper = Usual();
  hyper.lr = 0;
  EXPECT_TRUE(MakeAdamwBand(hyper));
  hyper.lr = 0.5;
  hyper.weight_decay = 1;
  EXPECT_TRUE(MakeAdamwBand(hyper));
  hyper = Usual();
  hyper.beta1 = 0;
  hyper.beta2 = 0.9999;
  hyper.step = 1;
  EXPECT_TRUE(MakeAdamwBand(hyper));
  hyper.step = uint64_t{1} << 60;
  EXPECT_TRUE(MakeAdamwBand(hyper));
}

TEST(MakeAdamwBandTest, RefusesWhatTheProofDoesNotCover) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const auto refused = [](auto change) {
    AdamwHyper hyper = Usual();
    change(hyper);
    const auto band = MakeAdamwBand(hyper);
    return band.has_value() ? std::string_view("accepted") : band.error();
  };
  for (double bad : {nan, inf, -inf}) {
    EXPECT_EQ(refused([&](AdamwHyper& h) { h.lr = bad; }), "a hyperparameter is not finite");
    EXPECT_EQ(refused([&](AdamwHyper& h) { h.weight_decay = bad; }), "a hyperparameter is not finite");
    EXPECT_EQ(refused([&](AdamwHyper& h) { h.beta1 = bad; }), "a hyperparameter is not finite");
    EXPECT_EQ(refused([&](AdamwHyper& h) { h.beta2 = bad; }), "a hyperparameter is not finite");
    EXPECT_EQ(refused([&](AdamwHyper& h) { h.eps = bad; }), "a hyperparameter is not finite");
  }
  EXPECT_EQ(refused([](AdamwHyper& h) { h.lr = -1e-9; }), "lr is negative");
  EXPECT_EQ(refused([](AdamwHyper& h) { h.weight_decay = -0.1; }), "lr * weight_decay is outside [0, 1/2]");
  EXPECT_EQ(refused([](AdamwHyper& h) { h.weight_decay = 0.6e6; }), "lr * weight_decay is outside [0, 1/2]");
  EXPECT_EQ(refused([](AdamwHyper& h) { h.beta1 = 0.99995; }), "beta1 is outside [0, 0.9999]");
  EXPECT_EQ(refused([](AdamwHyper& h) { h.beta1 = -0.1; }), "beta1 is outside [0, 0.9999]");
  EXPECT_EQ(refused([](AdamwHyper& h) { h.beta2 = 0.99995; }), "beta2 is outside [0, 0.9999]");
  EXPECT_EQ(refused([](AdamwHyper& h) { h.eps = 0; }), "eps is not a positive normal float32");
  EXPECT_EQ(refused([](AdamwHyper& h) { h.eps = -1e-8; }), "eps is not a positive normal float32");
  EXPECT_EQ(refused([](AdamwHyper& h) { h.eps = 1e-39; }), "eps is not a positive normal float32");
  EXPECT_EQ(refused([](AdamwHyper& h) { h.step = 0; }), "the step counter is 0");
  EXPECT_EQ(refused([](AdamwHyper& h) {
              h.lr = 1e300;
              h.weight_decay = 0;
            }),
            "the constants of the band overflow float32");
  EXPECT_FALSE(MakeAdamwBand(Usual(), 1.0));
}

}  // namespace
}  // namespace deltawire::kernels
