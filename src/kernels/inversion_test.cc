// The inversion is sound: optimizer steps in every covered operation order, on weights chosen next to the
// edges of their BF16 cells, and the true old bits known. The steps and the oracle share nothing with it.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/adamw_band.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {
namespace {

constexpr uint64_t kSeed = 20260511;
constexpr uint32_t kBatch = 1 << 14;

// splitmix64; the standard engines would be half of the time.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>((Next() >> 32) * n >> 32); }
  float Uniform() { return static_cast<float>(Next() >> 40) * 0x1p-24f; }
  float Log2Uniform(float low, float high) { return std::exp2(low + (high - low) * Uniform()); }
  float Sign() { return Next() >> 63 ? -1.0f : 1.0f; }
  // Sum of uniforms: near enough to normal, with bounded tails.
  float Normal() { return (Uniform() + Uniform() + Uniform() + Uniform() - 2) * 1.7320508f; }
  template <typename T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[Below(static_cast<uint32_t>(values.size()))];
  }

 private:
  uint64_t state_;
};

float AsFloat(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t AsBits(float x) { return std::bit_cast<uint32_t>(x); }

// Oracle: nearest BF16 by comparing distances in double.
uint16_t OracleBf16(float x) {
  if (std::isnan(x)) return 0xFFFF;
  const uint32_t bits = AsBits(x);
  const auto upper = static_cast<uint16_t>(bits >> 16);
  const uint32_t low = bits & 0xFFFF;
  if (low < 0x8000 || (low == 0x8000 && upper % 2 == 0)) return upper;
  return static_cast<uint16_t>(upper + 1);
}
bool OracleInSetZ(uint16_t bits) {
  return bits == 0x8000 || ((bits & 0x7FFF) != 0 && (bits & 0x7FFF) <= 0x0100);
}

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
  std::vector<float> before, after, m, v;
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

Batch MakeBatch(Random& rng, Family family, Order order) {
  Batch batch{RandomHyper(rng, family), std::vector<float>(kBatch), std::vector<float>(kBatch),
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
      uint32_t pattern = 0x3000 + rng.Below(0x4200 - 0x3000);
      if (rng.Below(8) == 0) pattern = (pattern & ~0x7Fu) | (rng.Below(2) ? 0x7F : 0);
      theta = rng.Sign() * AsFloat((pattern << 16) + 0x8000 + rng.Below(9) - 4);
      const float ulp = AsFloat(AsBits(std::fabs(theta)) + 1) - std::fabs(theta);
      const float u = rng.Sign() * ulp * rng.Log2Uniform(-4, 22);
      v = rng.Log2Uniform(-60, -10);
      const double denominator = std::sqrt(static_cast<double>(v) / f.bc2) + static_cast<double>(f.eps);
      m = static_cast<float>(f.lr == 0 ? static_cast<double>(u)
                                       : static_cast<double>(u) * denominator / (f.lr / f.bc1));
      if (aim_at_result) {
        theta = static_cast<float>((static_cast<double>(theta) + static_cast<double>(u)) / (1 - f.lambda));
      }
      if (family == kWild) {
        switch (rng.Below(8)) {
          case 0: theta = rng.Sign() * 0.0f; break;
          case 1: theta = AsFloat(static_cast<uint32_t>(rng.Next())); break;
          case 2: theta = rng.Sign() * AsFloat(rng.Below(0x01010000)); break;
          case 3: theta = rng.Sign() * AsFloat(0x7F7F8000 - 4 + rng.Below(9)); break;
          case 4: v = 0; break;
          case 5: m = rng.Sign() * 0.0f; break;
          case 6: v = std::fabs(AsFloat(static_cast<uint32_t>(rng.Next()))); break;
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

struct Lists {
  std::vector<uint32_t> changed = std::vector<uint32_t>(kBatch), uncertain = std::vector<uint32_t>(kBatch);
  std::vector<uint16_t> old = std::vector<uint16_t>(kBatch), low = std::vector<uint16_t>(kBatch);
  std::vector<uint8_t> span = std::vector<uint8_t>(kBatch);
  uint64_t lanes[2] = {0, 0};
};

Lists InvertWith(const Table& table, const Batch& batch, const AdamwBand& band) {
  Lists lists;
  Inverted out{lists.changed.data(),
               lists.old.data(),
               lists.uncertain.data(),
               lists.low.data(),
               lists.span.data(),
               0,
               0};
  table.invert_adamw({batch.after.data(), 0}, {batch.m.data(), 0}, {batch.v.data(), 0}, band, kBatch, 0, 1,
                     lists.lanes, &out);
  lists.changed.resize(out.changed_count);
  lists.old.resize(out.changed_count);
  lists.uncertain.resize(out.uncertain_count);
  lists.low.resize(out.uncertain_count);
  lists.span.resize(out.uncertain_count);
  return lists;
}

struct Tally {
  uint64_t steps = 0, changed = 0, missed = 0, wrong = 0, spurious = 0, uncertain = 0, without_span = 0;
};

void Judge(const Batch& batch, const AdamwBand& band, Tally& tally) {
  const Lists lists = InvertWith(CpuTable(), batch, band);
  size_t c = 0, u = 0;
  for (uint32_t i = 0; i < kBatch; ++i) {
    const uint16_t before = OracleBf16(batch.before[i]), after = OracleBf16(batch.after[i]);
    tally.changed += before != after;
    if (c < lists.changed.size() && lists.changed[c] == i) {
      tally.wrong += lists.old[c] != before;
      tally.spurious += before == after;
      ++c;
    } else if (u < lists.uncertain.size() && lists.uncertain[u] == i) {
      // Span 1: `low` and the next in ordinal order, which for negative values has the smaller magnitude.
      const int next = (lists.low[u] & 0x8000) ? lists.low[u] - 1 : lists.low[u] + 1;
      tally.wrong += lists.span[u] == 1 && before != lists.low[u] && before != next;
      tally.without_span += lists.span[u] == 0;
      ++u;
    } else {
      tally.missed += before != after && !OracleInSetZ(before);
    }
  }
  ASSERT_EQ(c, lists.changed.size()) << "positions must ascend";
  ASSERT_EQ(u, lists.uncertain.size()) << "positions must ascend";
  tally.steps += kBatch;
  tally.uncertain += lists.uncertain.size();
}

void Print(const char* what, const Tally& t) {
  std::printf(
      "%s: seed %llu, %.3g element-steps, changed %.4f %%, missed %llu, wrong %llu, uncertain %.4f %% (no "
      "span %.4f %%)\n",
      what, static_cast<unsigned long long>(kSeed), static_cast<double>(t.steps),
      100.0 * static_cast<double>(t.changed) / static_cast<double>(t.steps),
      static_cast<unsigned long long>(t.missed), static_cast<unsigned long long>(t.wrong),
      100.0 * static_cast<double>(t.uncertain) / static_cast<double>(t.steps),
      100.0 * static_cast<double>(t.without_span) / static_cast<double>(t.steps));
}

Tally RunFamily(Family family, uint32_t rounds, uint64_t seed) {
  Random rng(seed);
  Tally tally;
  for (uint32_t round = 0; round < rounds; ++round) {
    for (int order = 0; order < kOrders; ++order) {
      const Batch batch = MakeBatch(rng, family, static_cast<Order>(order));
      const auto band = MakeAdamwBand(batch.hyper);
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
  const Tally tally = RunFamily(kAdversarial, 80, kSeed);
  Print("adversarial", tally);
  EXPECT_EQ(tally.missed, 0u);
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_EQ(tally.spurious, 0u);
  EXPECT_GT(tally.changed, tally.steps / 10);
}

TEST(InversionTest, NaturalWeights) {
  const Tally tally = RunFamily(kNatural, 60, kSeed + 1);
  Print("natural", tally);
  EXPECT_EQ(tally.missed, 0u);
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_EQ(tally.spurious, 0u);
  EXPECT_LT(tally.uncertain, tally.steps / 1000);
}

TEST(InversionTest, WildWeightsAndMoments) {
  const Tally tally = RunFamily(kWild, 25, kSeed + 2);
  Print("wild", tally);
  EXPECT_EQ(tally.missed, 0u);
  EXPECT_EQ(tally.wrong, 0u);
  EXPECT_EQ(tally.spurious, 0u);
}

// The vector code screens with cheaper arithmetic first; the lists must still be the reference's.
TEST(InversionTest, ScreeningChangesNothing) {
  Random rng(kSeed + 5);
  for (Family family : {kAdversarial, kNatural, kWild}) {
    for (int round = 0; round < 3 * kOrders; ++round) {
      const Batch batch = MakeBatch(rng, family, static_cast<Order>(round % kOrders));
      const auto band = MakeAdamwBand(batch.hyper);
      if (!band) continue;
      const Lists expected = InvertWith(RefTable(), batch, *band),
                  actual = InvertWith(CpuTable(), batch, *band);
      ASSERT_EQ(actual.changed, expected.changed);
      ASSERT_EQ(actual.old, expected.old);
      ASSERT_EQ(actual.uncertain, expected.uncertain);
      ASSERT_EQ(actual.low, expected.low);
      ASSERT_EQ(actual.span, expected.span);
      ASSERT_EQ(actual.lanes[0], expected.lanes[0]);
      ASSERT_EQ(actual.lanes[1], expected.lanes[1]);
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
  Print("lr 1 % too small", tally);
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
  Print("plain inversion", tally);
  EXPECT_GT(tally.missed, 0u);
  EXPECT_GT(tally.wrong, 0u);
}

}  // namespace
}  // namespace deltawire::kernels
