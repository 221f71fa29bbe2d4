// The inversion of SGD is sound: steps with momentum, without and Nesterov, in every order of operations that
// docs/numerics.md covers, on weights chosen next to the edges of their BF16 cells.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/inversion_trial.h"
#include "kernels/kernels.h"
#include "kernels/sgd_band.h"

namespace deltawire::kernels {
namespace {

constexpr uint64_t kSeed = 20260512;
constexpr uint32_t kBatch = 1 << 14;

// As their kernels compute. This file is compiled without contraction, so a fused operation happens where
// std::fma says so and nowhere else.
enum Order {
  kRounded,       // torch in float32, a product and a sum each
  kFused,         // torch's add(alpha=): one rounding
  kDouble,        // torch's fused CUDA kernel: double lr and decay, rounded after each statement
  kMixed,         // fused and not, by compiler's choice
  kLrFirst,       // lr times each term
  kDecayFirst,    // theta times the rounded 1 - lambda
  kDecayLastSum,  // decay added after Nesterov's sum
  kOrders
};

float Step(Order order, const SgdHyper& h, float theta, float x, float y) {
  const auto lr = static_cast<float>(h.lr), decay = static_cast<float>(h.weight_decay),
             mu = static_cast<float>(h.mu);
  switch (order) {
    case kRounded: return theta + -lr * ((x + decay * theta) + mu * y);
    case kFused: return std::fma(-lr, std::fma(mu, y, std::fma(decay, theta, x)), theta);
    case kDouble: {
      float g = x;
      g = static_cast<float>(static_cast<double>(g) + h.weight_decay * static_cast<double>(theta));
      g = static_cast<float>(static_cast<double>(g) + h.mu * static_cast<double>(y));
      return static_cast<float>(static_cast<double>(theta) - h.lr * static_cast<double>(g));
    }
    case kMixed: return std::fma(-lr, (x + decay * theta) + mu * y, theta);
    case kLrFirst: return theta - ((lr * x + (lr * mu) * y) + (lr * decay) * theta);
    case kDecayFirst: return theta * static_cast<float>(1 - h.lr * h.weight_decay) - lr * (x + mu * y);
    case kDecayLastSum: return theta - lr * (decay * theta + (x + mu * y));
    case kOrders: break;
  }
  return theta;
}

enum Family { kAdversarial, kNatural, kWild };
enum Mode { kMomentum, kPlain, kNesterov, kModes };

struct Batch {
  SgdHyper hyper;
  std::vector<float> before, after, x, y;  // y empty: none
};

SgdHyper RandomHyper(Random& rng, Family family, Mode mode) {
  SgdHyper h;
  if (family == kNatural) {
    h.lr = rng.Pick({1e-5, 1e-4, 1e-3});
    if (mode != kMomentum) h.weight_decay = rng.Pick({0.0, 1e-4, 5e-4});
    if (mode == kNesterov) h.mu = 0.9;
    return h;
  }
  h.lr = rng.Pick({0.0, 1e-9, 1e-6, 1e-4, 1e-2, 0.1, 0.5, 3.0});
  if (mode != kMomentum) h.weight_decay = rng.Pick({0.0, 1e-5, 1e-3, 0.1, 1.0});
  if (mode == kNesterov) h.mu = rng.Pick({0.5, 0.9, 0.99, 0.1});
  if (mode != kMomentum && rng.Below(3) == 0) h = {-h.lr, -h.weight_decay, -h.mu};  // maximize
  return h;
}

Batch MakeBatch(Random& rng, Family family, Mode mode, Order order) {
  Batch batch{RandomHyper(rng, family, mode), std::vector<float>(kBatch), std::vector<float>(kBatch),
              std::vector<float>(kBatch), std::vector<float>(mode == kNesterov ? kBatch : 0)};
  const SgdHyper& h = batch.hyper;
  const bool aim_at_result = rng.Below(2) == 0;  // put theta', not theta, next to the edge
  for (uint32_t i = 0; i < kBatch; ++i) {
    float theta = 0, x = 0, y = 0;
    if (family == kNatural) {
      const float scale = 1e-2f * rng.Log2Uniform(-6, 6);
      theta = (rng.Below(16) == 0 ? 1e-4f : 0.02f) * rng.Normal();
      x = scale * rng.Normal();
      y = 3 * scale * rng.Normal();
    } else {
      theta = NextToAnEdge(rng);
      const float ulp = AsFloat(AsBits(std::fabs(theta)) + 1) - std::fabs(theta);
      const double u = static_cast<double>(rng.Sign() * ulp * rng.Log2Uniform(-4, 22));
      const double g = h.lr == 0 ? u : u / h.lr;
      // The terms of Nesterov's sum may cancel, all but a part.
      y = static_cast<float>(g) * rng.Sign() * rng.Log2Uniform(-3, 8);
      x = static_cast<float>(mode == kNesterov ? g - h.mu * static_cast<double>(y) : g);
      if (aim_at_result)
        theta = static_cast<float>((static_cast<double>(theta) + u) / (1 - h.lr * h.weight_decay));
      if (family == kWild) {
        switch (rng.Below(6)) {
          case 0: theta = rng.Sign() * 0.0f; break;
          case 1: theta = AsFloat(static_cast<uint32_t>(rng.Next())); break;
          case 2: theta = rng.Sign() * AsFloat(rng.Below(0x01010000)); break;
          case 3: theta = rng.Sign() * AsFloat(0x7F7F8000 - 4 + rng.Below(9)); break;
          case 4: y = AsFloat(static_cast<uint32_t>(rng.Next())); break;
          default: x = AsFloat(static_cast<uint32_t>(rng.Next())); break;
        }
        if (rng.Below(4) == 0) x = rng.Sign() * 0.0f;
        if (rng.Below(4) == 0) y = rng.Sign() * 0.0f;
      }
    }
    if (mode != kNesterov) y = 0;
    batch.before[i] = theta;
    batch.x[i] = x;
    if (mode == kNesterov) batch.y[i] = y;
    batch.after[i] = Step(order, h, theta, x, y);
  }
  return batch;
}

Lists InvertWith(const Table& table, const Batch& batch, const SgdBand& band) {
  Lists lists(kBatch);
  Inverted out = lists.Room();
  table.invert_sgd({batch.after.data(), 0}, {batch.x.data(), 0},
                   {batch.y.empty() ? nullptr : batch.y.data(), 0}, band, kBatch, 0, 1, lists.lanes, &out);
  lists.Cut(out);
  return lists;
}

// change: what a wrong detector does to the hyperparameters or the band.
template <class H, class B>
Tally RunMode(Family family, Mode mode, uint32_t rounds, uint64_t seed, H&& change_hyper, B&& change_band) {
  Random rng(seed);
  Tally tally;
  for (uint32_t round = 0; round < rounds; ++round) {
    for (int order = 0; order < kOrders; ++order) {
      const Batch batch = MakeBatch(rng, family, mode, static_cast<Order>(order));
      if (batch.hyper.lr * batch.hyper.weight_decay > 0.5) {
        EXPECT_FALSE(MakeSgdBand(batch.hyper).has_value());
        continue;
      }
      SgdHyper hyper = batch.hyper;
      change_hyper(hyper);
      auto band = MakeSgdBand(hyper);
      EXPECT_TRUE(band.has_value()) << band.error();
      change_band(*band);
      tally.Judge(batch.before, batch.after, InvertWith(CpuTable(), batch, *band));
    }
  }
  return tally;
}
constexpr auto kAsIs = [](auto&) {};

constexpr const char* kModeNames[] = {"momentum", "plain", "Nesterov"};

TEST(SgdInversionTest, AdversarialWeights) {
  for (int mode = 0; mode < kModes; ++mode) {
    const Tally tally = RunMode(kAdversarial, static_cast<Mode>(mode), 25, kSeed + mode, kAsIs, kAsIs);
    tally.Print(kModeNames[mode], kSeed + mode);
    tally.ExpectSound();
    EXPECT_GT(tally.changed, tally.steps / 10);
  }
}

TEST(SgdInversionTest, NaturalWeights) {
  for (int mode = 0; mode < kModes; ++mode) {
    const Tally tally = RunMode(kNatural, static_cast<Mode>(mode), 20, kSeed + 10 + mode, kAsIs, kAsIs);
    tally.Print(kModeNames[mode], kSeed + 10 + mode);
    tally.ExpectSound();
    EXPECT_LT(tally.uncertain, tally.steps / 1000);
  }
}

TEST(SgdInversionTest, WildWeightsAndStates) {
  for (int mode = 0; mode < kModes; ++mode) {
    const Tally tally = RunMode(kWild, static_cast<Mode>(mode), 10, kSeed + 20 + mode, kAsIs, kAsIs);
    tally.Print(kModeNames[mode], kSeed + 20 + mode);
    tally.ExpectSound();
  }
}

TEST(SgdInversionTest, ScreeningChangesNothing) {
  Random rng(kSeed + 30);
  for (Family family : {kAdversarial, kNatural, kWild}) {
    for (int round = 0; round < int{kModes} * int{kOrders}; ++round) {
      const Batch batch =
          MakeBatch(rng, family, static_cast<Mode>(round % kModes), static_cast<Order>(round % kOrders));
      const auto band = MakeSgdBand(batch.hyper);
      if (!band) continue;
      ASSERT_TRUE(InvertWith(CpuTable(), batch, *band) == InvertWith(RefTable(), batch, *band))
          << round << " of family " << family;
    }
  }
}

// A row of zeros whose gradient and buffer are zero is not sent at every step.
TEST(SgdInversionTest, ZerosThatNothingMovesAreKept) {
  const auto band = MakeSgdBand({.lr = 0.1, .weight_decay = 0.01, .mu = 0.9});
  ASSERT_TRUE(band.has_value());
  Batch batch;
  batch.after.assign(kBatch, 0.0f);
  batch.x.assign(kBatch, -0.0f);
  batch.y.assign(kBatch, 0.0f);
  for (const Table* table : {&RefTable(), &CpuTable()}) {
    const Lists lists = InvertWith(*table, batch, *band);
    EXPECT_TRUE(lists.changed.empty());
    EXPECT_TRUE(lists.uncertain.empty());
  }
}

// The tests above would notice each of these.
TEST(SgdInversionTest, WrongNumbersAreCaught) {
  const auto errors = [](const char* what, Family family, Mode mode, auto change_hyper, auto change_band) {
    const Tally tally = RunMode(family, mode, 6, kSeed + 40, change_hyper, change_band);
    tally.Print(what, kSeed + 40);
    return tally.missed + tally.wrong;
  };
  EXPECT_GT(errors("lr 1 % too small", kNatural, kMomentum, [](SgdHyper& h) { h.lr *= 0.99; }, kAsIs), 0u);
  EXPECT_GT(errors("no factor of y", kNatural, kNesterov, [](SgdHyper& h) { h.mu = 0; }, kAsIs), 0u);
  EXPECT_GT(errors("no decay", kAdversarial, kPlain, [](SgdHyper& h) { h.weight_decay = 0; }, kAsIs), 0u);
  EXPECT_GT(errors("plain inversion", kAdversarial, kMomentum, kAsIs,
                   [](SgdBand& band) { band.a = band.b = band.c = 0; }),
            0u);
  EXPECT_GT(errors("a band for the sum, not for its terms", kAdversarial, kNesterov, kAsIs,
                   [](SgdBand& band) { band.b *= 0x1p-8f; }),
            0u);
}

}  // namespace
}  // namespace deltawire::kernels
