// Guarded inversion of SGD: its screen and its exact estimate, in the order of InvertSgdElement.
#if defined(DELTAWIRE_KERNELS_CPU_SGD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_SGD_INL_H
#undef DELTAWIRE_KERNELS_CPU_SGD_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_SGD_INL_H
#endif

#include "kernels/cpu/invert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

template <bool kWithY>
struct SgdRule {
  const uint8_t* theta;
  const uint8_t* x;
  const uint8_t* y;
  const SgdBand& band;
  Screen screen;
  static constexpr bool kPrefetch = false;

  HWY_INLINE void PrefetchAhead(uint32_t i) const {
    PrefetchElements(theta, i, sizeof(float));
    PrefetchElements(x, i, sizeof(float));
    if constexpr (kWithY) PrefetchElements(y, i, sizeof(float));
  }
  HWY_INLINE void OperandsAt(uint32_t i, float& first, float& second) const {
    first = LoadMoment(x, i, false);
    second = kWithY ? LoadMoment(y, i, false) : 0.0f;
  }

  HWY_INLINE Operand OperandOf(uint32_t i) const {
    const DF df;
    const I16 d;
    const auto load = [&](const uint8_t* p, uint32_t at) {
      return LoadBytes(df, p + uint64_t{at} * sizeof(float));
    };
    const VF x_low = load(x, i), x_high = load(x, i + kLanes);
    VI16 size = UpperHalves(x_low, x_high), direction = size;
    if constexpr (kWithY) {
      const VF mu = hn::Set(df, band.mu), mu_size = hn::Abs(mu);
      const VF y_low = load(y, i), y_high = load(y, i + kLanes);
      direction = UpperHalves(hn::MulAdd(mu, y_low, x_low), hn::MulAdd(mu, y_high, x_high));
      size = UpperHalves(hn::MulAdd(mu_size, hn::Abs(y_low), hn::Abs(x_low)),
                         hn::MulAdd(mu_size, hn::Abs(y_high), hn::Abs(x_high)));
    }
    direction = hn::Xor(direction, hn::Set(d, std::signbit(band.s) ? -0x8000 : 0));
    return {hn::And(size, hn::Set(d, 0x7FFF)), direction, hn::FirstN(d, kPair)};
  }

  HWY_INLINE Estimate Undo(VF weights, VF x_at, VF y_at) const {
    const DF df;
    const VF s = hn::Set(df, band.s), mu = hn::Set(df, band.mu), zero = hn::Zero(df);
    const VF u = hn::Mul(s, hn::Add(x_at, hn::Mul(mu, y_at)));
    const VF size = hn::Mul(hn::Abs(s), hn::Add(hn::Abs(x_at), hn::Mul(hn::Abs(mu), hn::Abs(y_at))));
    return {hn::Add(hn::Mul(hn::Set(df, band.k1), weights), hn::Mul(hn::Set(df, band.k2), u)),
            hn::Add(hn::Mul(hn::Set(df, band.a), hn::Abs(weights)),
                    hn::Add(hn::Mul(hn::Set(df, band.b), size), hn::Set(df, band.c))),
            hn::Eq(zero, zero), hn::And(IsZero(x_at), IsZero(y_at))};
  }
};

}  // namespace

void InvertSgd(Source theta, Source x, Source y, const SgdBand& band, uint32_t n, uint64_t canonical,
               uint64_t key, uint64_t lanes[2], Inverted* out) {
  const Screen screen = MakeSgdScreen(band);
  if (y.base == nullptr) {
    Invert(SgdRule<false>{Address(theta), Address(x), nullptr, band, screen}, n, canonical, key, lanes, out);
  } else {
    Invert(SgdRule<true>{Address(theta), Address(x), Address(y), band, screen}, n, canonical, key, lanes,
           out);
  }
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_SGD_INL_H
