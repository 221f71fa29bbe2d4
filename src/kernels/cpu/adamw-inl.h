// Guarded inversion of AdamW: its screen and its exact estimate, in the order of InvertAdamwElement.
#if defined(DELTAWIRE_KERNELS_CPU_ADAMW_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_ADAMW_INL_H
#undef DELTAWIRE_KERNELS_CPU_ADAMW_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_ADAMW_INL_H
#endif

#include "kernels/cpu/invert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

// The upper halves of kPair moments.
template <bool kIsBf16>
HWY_INLINE VI16 MomentHalves(const uint8_t* p, uint64_t i) {
  if constexpr (kIsBf16) {
    return hn::BitCast(I16(), LoadBytes(D16(), p + i * sizeof(uint16_t)));
  } else {
    const DU du;
    return UpperHalves(LoadBytes(du, p + i * sizeof(float)), LoadBytes(du, p + (i + kLanes) * sizeof(float)));
  }
}

template <bool kBf16M, bool kBf16V>
struct AdamwRule {
  const uint8_t* theta;
  const uint8_t* m;
  const uint8_t* v;
  const AdamwBand& band;
  Screen screen;
  static constexpr bool kPrefetch = kBf16M && kBf16V;
  static constexpr uint32_t kBytesM = kBf16M ? 2 : 4, kBytesV = kBf16V ? 2 : 4;

  HWY_INLINE void PrefetchAhead(uint32_t i) const {
    PrefetchElements(theta, i, sizeof(float));
    PrefetchElements(m, i, kBytesM);
    PrefetchElements(v, i, kBytesV);
  }
  HWY_INLINE void OperandsAt(uint32_t i, float& first, float& second) const {
    first = LoadMoment(m, i, kBf16M);
    second = LoadMoment(v, i, kBf16V);
  }

  HWY_INLINE Operand OperandOf(uint32_t i) const {
    const D16 d16;
    const I16 d;
    const VI16 m_half = MomentHalves<kBf16M>(m, i), v_half = MomentHalves<kBf16V>(v, i);
    // Below the least v it stands for eps: 0 there. Where eps is tiny that must not pass, so everything is
    // one less and 0 wraps. A negative or NaN v comes out above the most.
    const uint16_t less = band.tiny_eps ? 1 : 0;
    const V16 root =
        hn::Sub(hn::ShiftRight<1>(hn::SaturatedSub(hn::BitCast(d16, v_half), hn::Set(d16, kLogLeastV))),
                hn::Set(d16, less));
    const auto usable =
        hn::Lt(root, hn::Set(d16, static_cast<uint16_t>((kLogMostV - kLogLeastV) / 2 - less)));
    return {hn::Sub(hn::And(m_half, hn::Set(d, 0x7FFF)), hn::BitCast(d, root)), m_half,
            hn::RebindMask(d, usable)};
  }

  HWY_INLINE Estimate Undo(VF weights, VF m_at, VF v_at) const {
    const DF df;
    const VF root = hn::Add(hn::Sqrt(hn::Mul(v_at, hn::Set(df, band.r))), hn::Set(df, band.eps));
    const VF u = hn::Div(hn::Mul(hn::Set(df, band.s), m_at), root);
    const VF limit = hn::Set(df, 0x1p100f);
    auto in_range = hn::And(hn::Lt(v_at, limit), hn::Lt(hn::Abs(m_at), limit));
    const auto idle = hn::And(IsZero(m_at), hn::FirstN(df, band.idle_stays ? kLanes : 0));
    if (band.tiny_eps)
      in_range = hn::And(in_range, hn::Or(hn::Eq(m_at, hn::Zero(df)), hn::Ge(v_at, hn::Set(df, 0x1p-100f))));
    return {hn::Add(hn::Mul(hn::Set(df, band.k1), weights), hn::Mul(hn::Set(df, band.k2), u)),
            hn::Add(hn::Mul(hn::Set(df, band.a), hn::Abs(weights)),
                    hn::Add(hn::Mul(hn::Set(df, band.b), hn::Abs(u)), hn::Set(df, band.c))),
            in_range, idle};
  }
};

}  // namespace

void InvertAdamw(Source theta, Source m, Source v, Moments stored, const AdamwBand& band, uint32_t n,
                 uint64_t canonical, uint64_t key, uint64_t lanes[2], Inverted* out) {
  const auto with = [&]<bool kM, bool kV>() {
    Invert(AdamwRule<kM, kV>{Address(theta), Address(m), Address(v), band, MakeAdamwScreen(band)}, n,
           canonical, key, lanes, out);
  };
  if (stored.m_is_bf16)
    return stored.v_is_bf16 ? with.template operator()<true, true>()
                            : with.template operator()<true, false>();
  return stored.v_is_bf16 ? with.template operator()<false, true>()
                          : with.template operator()<false, false>();
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_ADAMW_INL_H
