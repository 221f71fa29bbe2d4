// Guarded inversion of SGD: its screen and its exact estimate, in the order of InvertSgdElement.
#if defined(DELTAWIRE_KERNELS_CPU_SGD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_SGD_INL_H_
#undef DELTAWIRE_KERNELS_CPU_SGD_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_SGD_INL_H_
#endif

#include "kernels/cpu/invert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

// As AdamwScreen, but the update is known up to roundings, so its sign counts in full. The terms that grow
// with the size of the update exceed the roundings of both sides (below 2^-20 of it).
struct SgdScreen {
  float t;       // k2 s
  float spread;  // the part of the band that grows with |x| + |mu y|
  float slope;   // the part that grows with |theta|, decay included
  float floor;   // infinite where the bound does not hold: then every element is decided exactly
};

inline SgdScreen MakeSgdScreen(const SgdBand& band) {
  constexpr double kMore = 1 + 0x1p-10;
  const double size = std::fabs(static_cast<double>(band.s)), scale = std::fabs(band.mu);
  const bool holds = (size == 0 || (size >= 0x1p-60 && size <= 0x1p10)) &&
                     (scale == 0 || (scale >= 0x1p-60 && scale <= 0x1p10));
  return {
      .t = band.k2 * band.s,
      .spread = static_cast<float>(band.k2 * size * (kMore * band.b / band.k2 + 0x1p-19)),
      .slope = static_cast<float>(kMore * (static_cast<double>(band.a) + band.k1)),
      .floor = holds ? static_cast<float>(kMore * band.c) : INFINITY,
  };
}

template <bool kWithY>
struct SgdRule {
  const uint8_t* theta;
  const uint8_t* x;
  const uint8_t* y;
  const SgdBand& band;
  SgdScreen screen;

  HWY_INLINE void Advance(uint32_t n) {
    theta += uint64_t{n} * sizeof(float);
    x += uint64_t{n} * sizeof(float);
    if constexpr (kWithY) y += uint64_t{n} * sizeof(float);
  }
  HWY_INLINE void PrefetchAhead(uint32_t i) const {
    PrefetchElements(theta, i, sizeof(float));
    PrefetchElements(x, i, sizeof(float));
    if constexpr (kWithY) PrefetchElements(y, i, sizeof(float));
  }
  HWY_INLINE void OperandsAt(uint32_t i, float& first, float& second) const {
    first = LoadMoment(x, i, false);
    second = kWithY ? LoadMoment(y, i, false) : 0.0f;
  }

  HWY_INLINE hn::Mask<DF> Screen(uint32_t i, const Cell& cell) const {
    const DF df;
    const DU du;
    const VU size_mask = hn::Set(du, 0x7FFFFFFF);
    VF sum = LoadBytes(df, x + uint64_t{i} * sizeof(float));
    VF size = hn::Abs(sum);
    VU any = hn::Or(cell.bits, hn::BitCast(du, sum));
    if constexpr (kWithY) {
      const VF other = LoadBytes(df, y + uint64_t{i} * sizeof(float));
      const VF mu = hn::Set(df, band.mu);
      any = hn::Or(any, hn::BitCast(du, other));
      sum = hn::MulAdd(other, mu, sum);
      size = hn::MulAdd(hn::Abs(other), hn::Abs(mu), size);
    }
    const VF outward = hn::Xor(sum, hn::BitCast(df, hn::AndNot(size_mask, cell.bits)));
    const VF common = hn::MulAdd(size, hn::Set(df, screen.spread),
                                 hn::MulAdd(cell.a, hn::Set(df, screen.slope), hn::Set(df, screen.floor)));
    const VF t = hn::Set(df, screen.t);
    auto kept = hn::And(hn::Lt(hn::MulAdd(outward, t, common), cell.outer),
                        hn::Lt(hn::NegMulAdd(outward, t, common), cell.inner));
    // A tie, whose cell may be the other one. An update that points outward does not see that inner is 0.
    kept = hn::And(kept, hn::Gt(cell.inner, hn::Zero(df)));
    return hn::Or(kept, hn::RebindMask(df, hn::Eq(hn::And(any, size_mask), hn::Zero(du))));
  }

  HWY_INLINE Estimate Undo(VF weights, VF x_at, VF y_at) const {
    const DF df;
    const VF s = hn::Set(df, band.s), mu = hn::Set(df, band.mu), zero = hn::Zero(df);
    const VF u = hn::Mul(s, hn::Add(x_at, hn::Mul(mu, y_at)));
    const VF size = hn::Mul(hn::Abs(s), hn::Add(hn::Abs(x_at), hn::Mul(hn::Abs(mu), hn::Abs(y_at))));
    return {hn::Add(hn::Mul(hn::Set(df, band.k1), weights), hn::Mul(hn::Set(df, band.k2), u)),
            hn::Add(hn::Mul(hn::Set(df, band.a), hn::Abs(weights)),
                    hn::Add(hn::Mul(hn::Set(df, band.b), size), hn::Set(df, band.c))),
            hn::Eq(zero, zero), hn::And(hn::Eq(x_at, zero), hn::Eq(y_at, zero))};
  }
};

}  // namespace

void InvertSgd(Source theta, Source x, Source y, const SgdBand& band, uint32_t n, uint64_t canonical,
               uint64_t key, uint64_t lanes[2], Inverted* out) {
  const SgdScreen screen = MakeSgdScreen(band);
  if (y.base == nullptr) {
    InvertAll(SgdRule<false>{Address(theta), Address(x), nullptr, band, screen}, n, canonical, key, lanes,
              out);
  } else {
    InvertAll(SgdRule<true>{Address(theta), Address(x), Address(y), band, screen}, n, canonical, key, lanes,
              out);
  }
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_SGD_INL_H_
