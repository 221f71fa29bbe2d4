// Compiled for AVX2: builtins and internal linkage only (orders-inl.h says why).
#include "stress/inputs.h"

namespace deltawire::stress {
namespace {

inline uint32_t MixBits(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}

// Uniform 32 bits of element i.
inline uint32_t At(const Noise& noise, uint32_t i) {
  return MixBits(MixBits(i + noise.first) ^ noise.second);
}

// [0, n) from uniform bits.
inline uint32_t Below(uint32_t bits, uint32_t n) {
  return static_cast<uint32_t>(static_cast<uint64_t>(bits) * n >> 32);
}

// Nearly normal, mean 0, deviation 1, |x| <= 3.5: the sum of four uniform numbers.
inline float NearlyNormal(uint32_t bits, uint32_t more) {
  const uint32_t sum = (bits & 0xFFFF) + (bits >> 16) + (more & 0xFFFF) + (more >> 16);
  return (static_cast<float>(static_cast<int32_t>(sum)) - 131070.0f) * (1.7320508f / 65536.0f);
}

inline uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline float Root(float x) { return __builtin_sqrtf(x); }

// 2^low <= x < 2^(low + binades): binades are equally likely, x uniform in each.
inline float AcrossBinades(uint32_t bits, int low, uint32_t binades) {
  const uint32_t exponent = static_cast<uint32_t>(low + 127) + Below(bits, binades);
  return FloatOf(exponent << 23 | (bits & 0x7FFFFF));
}

// As BF16 it is nearly half a unit off, and units are largest, beside its size, just above a power of two.
inline float WorstForBf16(float x, uint32_t bits) {
  const uint32_t low = 0x8000 - 2 + (bits & 3);
  return FloatOf((BitsOf(x) & 0xFF800000) | low);
}

inline uint32_t NearestBf16(float x) {
  const uint32_t bits = BitsOf(x);
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
  return (bits & 0x7FFFFFFF) > 0x7F800000 ? bits | 0x00400000 : rounded;
}

struct Element {
  float theta, first, second;
};

// -4 ... 4 units from a midpoint; half of the elements at most one unit, and mostly right on it, where the
// least error decides.
inline uint32_t FromMidpoint(uint32_t bits) {
  const uint32_t near = static_cast<uint32_t>(__builtin_popcount(bits & 3)) - 1;
  return (bits & 4) != 0 ? near : Below(bits, 9) - 4;
}

// By how much the product rounds.
inline float RoundedAway(float x, float factor) {
  return __builtin_fabsf(__builtin_fmaf(x, factor, -(x * factor)));
}

// The moments of a step that subtracts about `wanted` from theta, and what it subtracts really.
struct Update {
  float first, second, size;
};

inline Update MakeUpdate(const Aim& aim, float theta, float wanted, uint32_t second_bits, uint32_t choices) {
  if (aim.sgd) {
    const float share = wanted * AcrossBinades(second_bits, -3, 24);
    const float second = !aim.nesterov ? 0 : aim.lr == 0 ? share : share / aim.lr;
    const float target = aim.lr == 0 ? wanted : wanted / aim.lr;
    const float first = target - aim.momentum * second - aim.decay * theta;
    return {first, second, aim.lr * (first + aim.momentum * second)};
  }
  float second = AcrossBinades(second_bits, -60, 50);
  second = (choices >> 6 & 15) == 0 ? 0 : second;
  second = aim.round_second && (choices & 0x400) != 0 ? WorstForBf16(second, choices >> 11) : second;
  const float denominator = Root(second * aim.inverse_bc2) + aim.eps;
  float first = aim.lr == 0 ? wanted : wanted * denominator / aim.step_size;
  first = aim.round_first && (choices & 0x2000) != 0 ? WorstForBf16(first, choices >> 14) : first;
  return {first, second, aim.step_size * first / denominator};
}

inline Element AimedElement(const Aim& aim, uint32_t i) {
  const uint32_t pattern_bits = At(aim.noise[0], i), choices = At(aim.noise[1], i);
  const uint32_t update_bits = At(aim.noise[2], i), second_bits = At(aim.noise[3], i);
  uint32_t pattern = 0x3000 + Below(pattern_bits, 0x4200 - 0x3000);
  // One in eight at either end of a binade, where the next cell has another width; three in eight just above
  // a power of two, where errors are largest beside the weight.
  const uint32_t which = choices & 7;
  const uint32_t end = (choices & 8) != 0 ? 0x7F : 0;
  pattern = which == 0 ? (pattern & ~0x7Fu) | end : which < 4 ? pattern & ~0x70u : pattern;
  const uint32_t units = FromMidpoint(MixBits(pattern_bits));
  const uint32_t bits = (choices << 27 & 0x80000000) | ((pattern << 16) + 0x8000 + units);
  // Of four neighbouring cells the one where the decay product rounds worst.
  float edge = FloatOf(bits);
  float worst = RoundedAway(edge, aim.factor);
  for (uint32_t other = 1; other < 4; ++other) {
    const float candidate = FloatOf(bits ^ other << 16);
    const float error = RoundedAway(candidate, aim.factor);
    edge = error > worst ? candidate : edge;
    worst = error > worst ? error : worst;
  }
  const float unit = FloatOf((pattern << 16 & 0x7F800000) - (23u << 23));
  const float size = unit * AcrossBinades(update_bits, -4, 26);
  const float wanted = FloatOf(BitsOf(size) | (choices << 26 & 0x80000000));
  const Update update = MakeUpdate(aim, edge, wanted, second_bits, choices);
  const float theta = (choices & 0x10000) != 0 ? (edge + update.size) * aim.inverse_c : edge;
  return {theta, update.first, update.second};
}

inline Element WildElement(const Aim& aim, uint32_t i) {
  Element out = AimedElement(aim, i);
  const uint32_t any = At(aim.noise[4], i), choices = At(aim.noise[5], i);
  const uint32_t sign = choices & 0x80000000;
  const uint32_t which = choices & 7;
  float theta = out.theta, first = out.first, second = out.second;
  theta = which == 0 ? FloatOf(sign) : theta;
  theta = which == 1 ? FloatOf(any) : theta;
  theta = which == 2 ? FloatOf(sign | Below(any, 0x01010000)) : theta;            // up to beyond set Z
  theta = which == 3 ? FloatOf(sign | (0x7F7F8000 - 4 + Below(any, 9))) : theta;  // BF16's overflow
  second = which == 4 ? 0 : second;
  first = which == 5 ? FloatOf(sign) : first;
  second = which == 6 ? FloatOf((choices & 8) != 0 ? any : any & 0x7FFFFFFF) : second;
  first = which == 7 ? FloatOf(any) : first;
  first = (choices >> 4 & 7) == 0 ? FloatOf(choices << 20 & 0x80000000) : first;
  // A first moment that BF16 rounds to zero, or nearly, and a step that ends on zero.
  const bool vanishes = which == 5 && (choices & 8) != 0 && !aim.sgd;
  first = vanishes ? FloatOf(sign | (any & 0xFFFF)) : first;
  second = vanishes && (choices & 0x100) != 0 ? 0 : second;
  const float update = aim.step_size * first / (Root(second * aim.inverse_bc2) + aim.eps);
  theta = vanishes ? update * aim.inverse_c : theta;
  return {theta, first, second};
}

}  // namespace

void AimStep(const Aim& aim_in, float* __restrict theta, float* __restrict first, float* __restrict second,
             uint32_t n) {
  const Aim aim = aim_in;
  if (aim.wild) {
    for (uint32_t i = 0; i < n; ++i) {
      const Element e = WildElement(aim, i);
      theta[i] = e.theta;
      first[i] = e.first;
      second[i] = e.second;
    }
    return;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const Element e = AimedElement(aim, i);
    theta[i] = e.theta;
    first[i] = e.first;
    second[i] = e.second;
  }
}

void AimFrom(const Aim& aim_in, const float* __restrict theta, float* __restrict first,
             float* __restrict second, uint32_t n) {
  const Aim aim = aim_in;
  const float c = 1 / aim.inverse_c;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t target_bits = At(aim.noise[0], i), choices = At(aim.noise[1], i);
    // A cell of the same or a neighbouring value: -2 ... 1 cells from the midpoint above.
    const uint32_t cell = (BitsOf(theta[i]) & 0xFFFF0000) + (((target_bits & 3) - 2) << 16);
    const float target = FloatOf(cell + 0x8000 + FromMidpoint(MixBits(target_bits)));
    const float wanted = c * theta[i] - target;
    // A BF16 moment next to its own midpoint would miss the target.
    const Update update = MakeUpdate(aim, theta[i], wanted, At(aim.noise[3], i), choices & ~0x2000u);
    // One in eight gets a step of zero: decay alone.
    first[i] = (choices & 7) == 0 ? FloatOf(choices & 0x80000000) : update.first;
    second[i] = update.second;
  }
}

void BeginTraining(const Noise noise_in[4], const Training& training_in, const Parameter& p_in, uint32_t n) {
  const Noise noise[4] = {noise_in[0], noise_in[1], noise_in[2], noise_in[3]};
  const Training training = training_in;
  const Parameter p = p_in;
  // Of an exponential average of noise, after long.
  const float spread = Root((1 - training.beta1) / (1 + training.beta1));
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t a = At(noise[0], i), b = At(noise[1], i), c = At(noise[2], i), d = At(noise[3], i);
    float theta = training.deviation * NearlyNormal(a, b);
    float scale = 1e-5f * AcrossBinades(c, -6, 12);
    // One element in eight drifts.
    const float drift = (d & 7) == 0 ? 1.5f : 0.05f * NearlyNormal(MixBits(d), MixBits(c));
    if (training.troubled) {
      const uint32_t which = d >> 3 & 31;
      theta = which == 0 ? 0.0f : which == 1 ? -0.0f : which == 2 ? FloatOf(a & 0x81FFFFFF) : theta;
      scale = (d >> 8 & 15) == 0 ? 0 : scale;
    }
    const float size = training.warm ? scale : 0;
    p.theta[i] = theta;
    p.scale[i] = scale;
    p.mean[i] = drift;
    p.first[i] = size * (drift + spread * NearlyNormal(MixBits(a), MixBits(b)));
    p.second[i] = size * size * (1 + drift * drift);
    p.largest[i] = p.second[i] * (1 + 0x1p-8f * static_cast<float>(d >> 24));
  }
}

void NextMoments(const Gradients& gradients_in, const Parameter& p_in, const Registers& out_in, uint32_t n) {
  const Gradients g = gradients_in;
  const Parameter p = p_in;
  const Registers out = out_in;
  const float direction = g.maximize ? -1.0f : 1.0f;
  float* __restrict first = out.first;
  float* __restrict second = out.second;
  float* __restrict largest = out.largest;
  const auto gradient_of = [&](uint32_t i) {
    return direction * p.scale[i] * (p.mean[i] + NearlyNormal(At(g.noise[0], i), At(g.noise[1], i)));
  };
  if (g.sgd) {
    for (uint32_t i = 0; i < n; ++i) {
      const float gradient = gradient_of(i);
      const float old = g.nesterov ? p.second[i] : p.first[i];
      const float buffer = g.momentum * old + (gradient + g.l2 * p.theta[i]);
      first[i] = g.nesterov || g.momentum == 0 ? gradient : buffer;
      second[i] = buffer;
      largest[i] = buffer;
    }
    return;
  }
  const float rest1 = 1 - g.beta1, rest2 = 1 - g.beta2;
  for (uint32_t i = 0; i < n; ++i) {
    const float gradient = gradient_of(i) + g.l2 * p.theta[i];
    const float v = g.beta2 * p.second[i] + rest2 * gradient * gradient;
    first[i] = g.beta1 * p.first[i] + rest1 * gradient;
    second[i] = v;
    largest[i] = g.amsgrad && p.largest[i] > v ? p.largest[i] : v;
  }
}

void RoundToBf16(const float* __restrict x, float* __restrict out, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) out[i] = FloatOf(NearestBf16(x[i]));
}

}  // namespace deltawire::stress
