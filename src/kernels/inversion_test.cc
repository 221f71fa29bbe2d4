// The inversion is sound: optimizer steps in every covered operation order, on weights chosen next to the
// edges of their BF16 cells, and the true old bits known. The steps and the oracle share nothing with it.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/adamw_band.h"
#include "kernels/inversion_trial.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {
namespace {

constexpr uint64_t kSeed = 20260511;
constexpr uint32_t kBatch = 1 << 14;
constexpr Moments kStorages[] = {{}, {true, true}, {true, false}, {false, true}};

struct Factors {
  double lr, lambda, bc1, bc2;
  float eps;
};

// The operation orders of docs/numerics.md, in float32 as their kernels compute. This file is compiled
// without contraction, so a fused operation happens where std::fma says so and nowhere else.
enum Order {
  kTorchSingle,
  kTorchSingleFused,
  kFusedDoubleDecay,
  kCoupled,
  kCoupledFused,
  kChain,
  kDecayLast,
  kReciprocal,
  kOrders
};

float Step(Order order, const Factors& f, float theta, float m, float v) {
  const auto step_size = static_cast<float>(f.lr / f.bc1);
  const auto root_bc2 = static_cast<float>(std::sqrt(f.bc2));
  const auto factor = static_cast<float>(1 - f.lambda);
  switch (order) {
    case kTorchSingle: {
      const float denominator = std::sqrt(v) / root_bc2 + f.eps;
      return theta * factor + (-step_size * m) / denominator;
    }
    case kTorchSingleFused: {
      const float denominator = std::sqrt(v) / root_bc2 + f.eps;
      return std::fma(-step_size, m / denominator, theta * factor);
    }
    case kFusedDoubleDecay: {
      const auto decayed =
          static_cast<float>(static_cast<double>(theta) - f.lambda * static_cast<double>(theta));
      const float denominator = std::sqrt(v) / root_bc2 + f.eps;
      return decayed - step_size * m / denominator;
    }
    case kCoupled:
    case kCoupledFused: {
      const auto lr = static_cast<float>(f.lr);
      const auto decay = static_cast<float>(f.lr == 0 ? 0 : f.lambda / f.lr);
      const float u = (m / static_cast<float>(f.bc1)) / (std::sqrt(v / static_cast<float>(f.bc2)) + f.eps);
      if (order == kCoupledFused) return std::fma(-lr, std::fma(decay, theta, u), theta);
      return theta - lr * (u + decay * theta);
    }
    case kChain: {
      const float inverse_root = 1.0f / root_bc2;
      const float q = m / std::fma(std::sqrt(v), inverse_root, f.eps);
      return std::fma(q, -step_size, std::fma(theta, static_cast<float>(-f.lambda), theta));
    }
    case kDecayLast: return (theta - step_size * m / (std::sqrt(v) / root_bc2 + f.eps)) * factor;
    case kReciprocal: {
      // Approximate division: a reciprocal that is off by one unit, as fast-math kernels have it.
      const float reciprocal = 1.0f / (std::sqrt(v * static_cast<float>(1 / f.bc2)) + f.eps);
      const float off = std::nextafter(reciprocal, INFINITY);
      return theta * factor - step_size * (m * off);
    }
    case kOrders: break;
  }
  return theta;
}

enum Family { kAdversarial, kNatural, kWild };

struct Batch {
  AdamwHyper hyper;
  Moments stored;
  std::vector<float> before, after, m, v;  // m and v as the step used them
};

AdamwHyper RandomHyper(Random& rng, Family family) {
  AdamwHyper h;
  if (family == kNatural) {
    h.lr = rng.Pick({1e-6, 3e-6, 1e-5});
    h.weight_decay = rng.Pick({0.0, 0.01, 0.1});
    h.beta2 = rng.Pick({0.95, 0.999});
    h.step = rng.Pick<uint64_t>({1, 10, 100, 1000});
    return h;
  }
  h.lr = rng.Pick({0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1});
  h.weight_decay = rng.Pick({0.0, 0.01, 0.1, 1.0, 5.0});
  h.beta1 = rng.Pick({0.0, 0.8, 0.9, 0.95, 0.99, 0.999});
  h.beta2 = rng.Pick({0.95, 0.98, 0.99, 0.999, 0.9999});
  h.eps = rng.Pick({1e-5, 1e-8, 1e-12, 1e-15, 1e-20});
  h.step = rng.Pick<uint64_t>({1, 2, 3, 10, 100, 1000, 20000});
  return h;
}

Factors FactorsOf(const AdamwHyper& h) {
  const double t = static_cast<double>(h.step);
  return {h.lr, h.lr * h.weight_decay, 1 - std::pow(h.beta1, t), 1 - std::pow(h.beta2, t),
          static_cast<float>(h.eps)};
}

Batch MakeBatch(Random& rng, Family family, Order order, Moments stored = {}) {
  Batch batch{RandomHyper(rng, family),   stored,
              std::vector<float>(kBatch), std::vector<float>(kBatch),
              std::vector<float>(kBatch), std::vector<float>(kBatch)};
  const Factors f = FactorsOf(batch.hyper);
  const bool aim_at_result = rng.Below(2) == 0;  // put theta', not theta, next to the edge
  for (uint32_t i = 0; i < kBatch; ++i) {
    float theta = 0, m = 0, v = 0;
    if (family == kNatural) {
      const float scale = 1e-5f * rng.Log2Uniform(-6, 6);
      theta = (rng.Below(16) == 0 ? 1e-4f : 0.02f) * rng.Normal();
      m = scale * (rng.Below(8) == 0 ? 1.0f : 0.2f) * rng.Normal();
      v = scale * scale * (0.5f + rng.Uniform());
    } else {
      theta = NextToAnEdge(rng);
      const float ulp = AsFloat(AsBits(std::fabs(theta)) + 1) - std::fabs(theta);
      const float u = rng.Sign() * ulp * rng.Log2Uniform(-4, 22);
      v = rng.Log2Uniform(-60, -10);
      if (stored.v_is_bf16) v = NextToATie(rng, v);
      const double denominator = std::sqrt(static_cast<double>(v) / f.bc2) + static_cast<double>(f.eps);
      m = static_cast<float>(f.lr == 0 ? static_cast<double>(u)
                                       : static_cast<double>(u) * denominator / (f.lr / f.bc1));
      if (stored.m_is_bf16) m = NextToATie(rng, m);
      if (aim_at_result) {
        theta = static_cast<float>(
            (static_cast<double>(theta) + f.lr / f.bc1 * static_cast<double>(m) / denominator) /
            (1 - f.lambda));
      }
      if (family == kWild) {
        switch (rng.Below(8)) {
          case 0: theta = rng.Sign() * 0.0f; break;
          case 1: theta = AsFloat(static_cast<uint32_t>(rng.Next())); break;
          case 2: theta = rng.Sign() * AsFloat(rng.Below(0x01010000)); break;
          case 3: theta = rng.Sign() * AsFloat(0x7F7F8000 - 4 + rng.Below(9)); break;
          case 4: v = 0; break;
          case 5: m = rng.Sign() * 0.0f; break;
          case 6:
            // Anything, or next to the limits of the proof.
            v = rng.Below(2) ? std::fabs(AsFloat(static_cast<uint32_t>(rng.Next())))
                             : std::ldexp(1 + rng.Uniform() / 16 - 0x1p-5f, rng.Below(2) ? 100 : -100);
            break;
          default: m = AsFloat(static_cast<uint32_t>(rng.Next())); break;
        }
        if (rng.Below(8) == 0) m = 0;
      }
    }
    batch.before[i] = theta;
    batch.m[i] = m;
    batch.v[i] = v;
    batch.after[i] = Step(order, f, theta, m, v);
  }
  return batch;
}

std::vector<uint16_t> Rounded(const std::vector<float>& values) {
  std::vector<uint16_t> out;
  out.reserve(values.size());
  for (float x : values) out.push_back(OracleBf16(x));
  return out;
}

Lists InvertWith(const Table& table, const Batch& batch, const AdamwBand& band) {
  const std::vector<uint16_t> m = Rounded(batch.m), v = Rounded(batch.v);
  const auto source = [](bool is_bf16, const std::vector<float>& full, const std::vector<uint16_t>& half) {
    return is_bf16 ? Source{half.data(), 0} : Source{full.data(), 0};
  };
  Lists lists(kBatch);
  Inverted out = lists.Room();
  table.invert_adamw({batch.after.data(), 0}, source(batch.stored.m_is_bf16, batch.m, m),
                     source(batch.stored.v_is_bf16, batch.v, v), batch.stored, band, kBatch, 0, 1,
                     lists.lanes, &out);
  lists.Cut(out);
  return lists;
}

auto BandOf(const Batch& batch) {
  return MakeAdamwBand(batch.hyper, MomentError(batch.stored.m_is_bf16, batch.stored.v_is_bf16));
}

void Judge(const Batch& batch, const AdamwBand& band, Tally& tally) {
  tally.Judge(batch.before, batch.after, InvertWith(CpuTable(), batch, band));
}

Tally RunFamily(Family family, Moments stored, uint32_t rounds, uint64_t seed) {
  Random rng(seed);
  Tally tally;
  for (uint32_t round = 0; round < rounds; ++round) {
    for (int order = 0; order < kOrders; ++order) {
      const Batch batch = MakeBatch(rng, family, static_cast<Order>(order), stored);
      const auto band = BandOf(batch);
      if (batch.hyper.lr * batch.hyper.weight_decay > 0.5) {
        EXPECT_FALSE(band.has_value());
        continue;
      }
      EXPECT_TRUE(band.has_value());
      Judge(batch, *band, tally);
    }
  }
  return tally;
}

TEST(InversionTest, AdversarialWeights) {
  const Tally tally = RunFamily(kAdversarial, {}, 60, kSeed);
  tally.Print("adversarial", kSeed);
  tally.ExpectSound();
  EXPECT_GT(tally.changed, tally.steps / 10);
}

TEST(InversionTest, NaturalWeights) {
  const Tally tally = RunFamily(kNatural, {}, 50, kSeed + 1);
  tally.Print("natural", kSeed + 1);
  tally.ExpectSound();
  EXPECT_LT(tally.uncertain, tally.steps / 1000);
}

TEST(InversionTest, WildWeightsAndMoments) {
  for (const Moments stored : kStorages) {
    const Tally tally = RunFamily(kWild, stored, 10, kSeed + 2);
    tally.Print("wild", kSeed + 2);
    tally.ExpectSound();
  }
}

// Moments that lie next to the ties of BF16 lose as much as can be lost in storage.
TEST(InversionTest, MomentsStoredInBf16) {
  for (const Moments stored : {Moments{true, true}, Moments{true, false}, Moments{false, true}}) {
    Tally tally = RunFamily(kAdversarial, stored, 20, kSeed + 6);
    tally.Print("BF16 moments, adversarial", kSeed + 6);
    tally.ExpectSound();
    tally = RunFamily(kNatural, stored, 15, kSeed + 7);
    tally.Print("BF16 moments, natural", kSeed + 7);
    tally.ExpectSound();
    EXPECT_LT(tally.uncertain, tally.steps / 100);
  }
}

// The vector code screens with cheaper arithmetic first; the lists must still be the reference's.
TEST(InversionTest, ScreeningChangesNothing) {
  Random rng(kSeed + 5);
  for (const Moments stored : kStorages) {
    for (Family family : {kAdversarial, kNatural, kWild}) {
      for (int round = 0; round < 2 * kOrders; ++round) {
        const Batch batch = MakeBatch(rng, family, static_cast<Order>(round % kOrders), stored);
        const auto band = BandOf(batch);
        if (!band) continue;
        ASSERT_TRUE(InvertWith(CpuTable(), batch, *band) == InvertWith(RefTable(), batch, *band))
            << round << " of family " << family;
      }
    }
  }
}

// The tests above would notice: an lr one percent too small loses changed elements.
TEST(InversionTest, TooSmallAnLrIsCaught) {
  Random rng(kSeed + 3);
  Tally tally;
  for (int round = 0; round < 10; ++round) {
    const Batch batch = MakeBatch(rng, kNatural, kTorchSingle);
    AdamwHyper wrong = batch.hyper;
    wrong.lr *= 0.99;
    Judge(batch, *MakeAdamwBand(wrong), tally);
  }
  tally.Print("lr 1 % too small", kSeed + 3);
  EXPECT_GT(tally.missed, 0u);
}

// So would the band without its width, which is plain inversion: estimate theta, round, compare.
TEST(InversionTest, PlainInversionIsCaught) {
  Random rng(kSeed + 4);
  Tally tally;
  for (int round = 0; round < 4; ++round) {
    for (int order = 0; order < kOrders; ++order) {
      const Batch batch = MakeBatch(rng, kAdversarial, static_cast<Order>(order));
      auto band = MakeAdamwBand(batch.hyper);
      if (!band) continue;
      band->a = band->b = band->c = 0;
      Judge(batch, *band, tally);
    }
  }
  tally.Print("plain inversion", kSeed + 4);
  EXPECT_GT(tally.missed, 0u);
  EXPECT_GT(tally.wrong, 0u);
}

// And an error of stored moments that looks plausible but is less than two roundings to BF16 (0.0059) can be.
TEST(InversionTest, TooSmallAMomentErrorIsCaught) {
  for (const auto& [stored, error] : {std::pair(Moments{true, true}, 0.0031),
                                      {Moments{true, true}, kBf16M},
                                      {Moments{true, false}, kBf16V},
                                      {Moments{false, true}, 0.0015}}) {
    Random rng(kSeed + 8);
    Tally tally;
    for (int round = 0; round < 8 * kOrders; ++round) {
      const Batch batch = MakeBatch(rng, kAdversarial, static_cast<Order>(round % kOrders), stored);
      const auto band = MakeAdamwBand(batch.hyper, error);
      if (band) Judge(batch, *band, tally);
    }
    tally.Print("moment error too small", kSeed + 8);
    EXPECT_GT(tally.missed, 0u) << stored.m_is_bf16 << stored.v_is_bf16 << " " << error;
  }
}

}  // namespace
}  // namespace deltawire::kernels
