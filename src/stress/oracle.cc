// Compiled for AVX2: builtins and internal linkage only (orders-inl.h says why).
#include "stress/oracle.h"

namespace deltawire::stress {
namespace {

inline uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }
inline bool IsNan(float x) { return (BitsOf(x) & 0x7FFFFFFF) > 0x7F800000; }

// By distance: the upper half of the bits is the BF16 next to zero; the lower half says how far it is away.
template <bool kHalfUp>
inline uint32_t ServedBits(float x) {
  const uint32_t upper = BitsOf(x) >> 16, rest = BitsOf(x) & 0xFFFF;
  const uint32_t away = rest > 0x8000 ? 1 : 0;
  const uint32_t tie = rest == 0x8000 ? 1 : 0;
  const uint32_t served = upper + (away | (tie & (kHalfUp ? 1 : upper)));
  return IsNan(x) ? 0xFFFF : served;
}

template <bool kHalfUp>
void ExportLoop(const float* __restrict theta, uint16_t* __restrict served, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) served[i] = static_cast<uint16_t>(ServedBits<kHalfUp>(theta[i]));
}

inline float Root(float x) { return __builtin_sqrtf(x); }
inline double Root(double x) { return __builtin_sqrt(x); }

template <class T, bool kHalfUp>
uint64_t MissedLoop(const PlainInversion& step, const float* theta, const float* first, const float* second,
                    const uint16_t* before, const uint16_t* after, uint32_t n) {
  const T c = static_cast<T>(step.c), lr = static_cast<T>(step.lr), eps = static_cast<T>(step.eps);
  const T step_size = static_cast<T>(step.lr / step.bc1), inverse_bc2 = static_cast<T>(1 / step.bc2);
  const T momentum = static_cast<T>(step.momentum);
  uint32_t missed = 0;
  if (step.sgd) {
    for (uint32_t i = 0; i < n; ++i) {
      const T u = lr * (static_cast<T>(first[i]) + momentum * static_cast<T>(second[i]));
      const T old = (static_cast<T>(theta[i]) + u) / c;
      missed += before[i] != after[i] && ServedBits<kHalfUp>(static_cast<float>(old)) == after[i] ? 1 : 0;
    }
    return missed;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const T denominator = Root(static_cast<T>(second[i]) * inverse_bc2) + eps;
    const T u = step_size * static_cast<T>(first[i]) / denominator;
    const T old = (static_cast<T>(theta[i]) + u) / c;
    missed += before[i] != after[i] && ServedBits<kHalfUp>(static_cast<float>(old)) == after[i] ? 1 : 0;
  }
  return missed;
}

inline double SizeOf(double x) { return __builtin_fabs(x); }

// Weights that round to a finite BF16, moments below 2^100.
inline bool InRange(float theta, float first, float second) {
  return (BitsOf(theta) & 0x7FFFFFFF) < 0x7F7F8000 && (BitsOf(first) & 0x7FFFFFFF) < 0x71800000 &&
         (BitsOf(second) & 0x7FFFFFFF) < 0x71800000;
}

template <bool kSgd>
double RatioAt(const Promise& p, float before, float after, float first, float second) {
  const double theta = after, x = first, y = second;
  double u, size;
  bool promised = InRange(after, first, second);
  if constexpr (kSgd) {
    u = p.s * (x + p.mu * y);
    size = SizeOf(p.s) * (SizeOf(x) + SizeOf(p.mu * y));
  } else {
    u = p.s * x / (Root(y * p.r) + p.eps);
    size = SizeOf(u);
    promised = promised && y >= 0 && (!p.tiny_eps || x == 0 || y >= 0x1p-100);
  }
  const double error = SizeOf(static_cast<double>(before) - theta - (p.k1 * theta + p.k2 * u));
  const double band = p.a * SizeOf(theta) + (p.b * size + p.c);
  return promised ? error / band : 0;
}

template <bool kSgd>
double WorstRatio(const Promise& promise, const float* before, const float* after, const float* first,
                  const float* second, uint32_t n, uint32_t* index) {
  const Promise p = promise;
  double worst = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const double ratio = RatioAt<kSgd>(p, before[i], after[i], first[i], second[i]);
    worst = ratio > worst ? ratio : worst;
  }
  *index = 0;
  for (uint32_t i = 0; worst > 1 && i < n; ++i) {
    if (RatioAt<kSgd>(p, before[i], after[i], first[i], second[i]) == worst) *index = i;
  }
  return worst;
}

}  // namespace

double WorstBandRatio(const Promise& promise, const float* theta_before, const float* theta_after,
                      const float* first, const float* second, uint32_t n, uint32_t* index) {
  return promise.sgd ? WorstRatio<true>(promise, theta_before, theta_after, first, second, n, index)
                     : WorstRatio<false>(promise, theta_before, theta_after, first, second, n, index);
}

void Export(const float* theta, bool half_up, uint16_t* served, uint32_t n) {
  half_up ? ExportLoop<true>(theta, served, n) : ExportLoop<false>(theta, served, n);
}

uint64_t MissedInFloat(const PlainInversion& step, const float* theta, const float* first,
                       const float* second, const uint16_t* before, const uint16_t* after, uint32_t n) {
  return step.half_up ? MissedLoop<float, true>(step, theta, first, second, before, after, n)
                      : MissedLoop<float, false>(step, theta, first, second, before, after, n);
}

uint64_t MissedInDouble(const PlainInversion& step, const float* theta, const float* first,
                        const float* second, const uint16_t* before, const uint16_t* after, uint32_t n) {
  return step.half_up ? MissedLoop<double, true>(step, theta, first, second, before, after, n)
                      : MissedLoop<double, false>(step, theta, first, second, before, after, n);
}

Comparison Compare(const uint16_t* before, const uint16_t* after, const uint8_t* marked, uint32_t n) {
  uint32_t changed = 0, missed = 0, excess = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t differs = before[i] != after[i] ? 1 : 0, mark = marked[i] != 0 ? 1 : 0;
    changed += differs;
    missed += differs & (mark ^ 1);
    excess += mark & (differs ^ 1);
  }
  return {changed, missed, excess};
}

}  // namespace deltawire::stress
