#include "kernels/sgd_band.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deltawire::kernels {
namespace {

constexpr double kE = 0x1p-24;

TEST(MakeSgdBandTest, MomentumHasNoDecayOfItsOwn) {
  const auto band = MakeSgdBand({.lr = 1e-3});
  ASSERT_TRUE(band.has_value());
  EXPECT_EQ(band->k1, 0.0f);
  EXPECT_EQ(band->k2, 1.0f);
  EXPECT_EQ(band->s, 1e-3f);
  EXPECT_EQ(band->mu, 0.0f);
  EXPECT_FLOAT_EQ(band->a, static_cast<float>(3.003 * kE));
  EXPECT_FLOAT_EQ(band->b, static_cast<float>(24.024 * kE));
  EXPECT_NEAR(band->c, std::ldexp(1.0, -120), std::ldexp(1.0, -130));
}

TEST(MakeSgdBandTest, CoupledDecayIsUndoneAndWidensTheBand) {
  const auto band = MakeSgdBand({.lr = 0.1, .weight_decay = 1, .mu = 0.9});
  ASSERT_TRUE(band.has_value());
  EXPECT_FLOAT_EQ(band->k1, static_cast<float>(0.1 / 0.9));
  EXPECT_FLOAT_EQ(band->k2, static_cast<float>(1 / 0.9));
  EXPECT_EQ(band->mu, 0.9f);
  EXPECT_FLOAT_EQ(band->a, static_cast<float>(1.001 * kE * (3 + 1.6) / 0.9));
  EXPECT_FLOAT_EQ(band->b, static_cast<float>(24.024 * kE / 0.9));
}

TEST(MakeSgdBandTest, AStepThatMaximizesHasNegativeFactors) {
  const auto down = MakeSgdBand({.lr = 0.1, .weight_decay = 0.01, .mu = 0.9});
  const auto up = MakeSgdBand({.lr = -0.1, .weight_decay = -0.01, .mu = -0.9});
  ASSERT_TRUE(down && up);
  EXPECT_EQ(up->s, -down->s);
  EXPECT_EQ(up->k1, down->k1);
  EXPECT_EQ(up->a, down->a);
  EXPECT_EQ(up->b, down->b);
  EXPECT_EQ(up->c, down->c);
}

TEST(MakeSgdBandTest, RefusesWhatTheProofDoesNotCover) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const auto refused = [](double lr, double weight_decay, double mu) {
    const auto band = MakeSgdBand({lr, weight_decay, mu});
    return band.has_value() ? std::string_view("accepted") : band.error();
  };
  for (double bad : {nan, inf, -inf}) {
    EXPECT_EQ(refused(bad, 0, 0), "a hyperparameter is not finite");
    EXPECT_EQ(refused(0.1, bad, 0), "a hyperparameter is not finite");
    EXPECT_EQ(refused(0.1, 0, bad), "a hyperparameter is not finite");
  }
  for (double bad : {1e-39, -1e-39, 1e300}) {
    EXPECT_EQ(refused(bad, 0, 0), "a hyperparameter is outside the normal range of float32");
    EXPECT_EQ(refused(0.1, bad, 0), "a hyperparameter is outside the normal range of float32");
    EXPECT_EQ(refused(0.1, 0, bad), "a hyperparameter is outside the normal range of float32");
  }
  EXPECT_EQ(refused(0.1, -0.1, 0), "lr * weight_decay is outside [0, 1/2]");
  EXPECT_EQ(refused(-0.1, 0.1, 0), "lr * weight_decay is outside [0, 1/2]");
  EXPECT_EQ(refused(1, 0.6, 0), "lr * weight_decay is outside [0, 1/2]");
  EXPECT_EQ(refused(1e38, 0, 1e38), "the constants of the band overflow float32");
  EXPECT_EQ(refused(0, 0, 0), "accepted");
  EXPECT_EQ(refused(0.5, 1, 0.9), "accepted");
}

}  // namespace
}  // namespace deltawire::kernels
