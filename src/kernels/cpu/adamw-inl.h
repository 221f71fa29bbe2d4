// Guarded inversion of AdamW: its screen and its exact estimate, in the order of InvertAdamwElement.
#if defined(DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_
#undef DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_
#endif

#include "kernels/cpu/invert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

// A cheap sufficient condition for "kept": no root, no division, nothing that must round as the reference
// does. |u| is bounded by s |m| / sqrt(v r), because eps only shrinks it; the estimate of 1 / sqrt(v) is good
// to 2^-11. What it lets pass, the reference keeps; everything else is decided exactly in Settle. The factor
// kGrow and the allowance in `spread` exceed every rounding on both sides.
struct AdamwScreen {
  float half;     // t / 2 with t = k2 s / sqrt(r): half (p + |p|) is the update where it points outward
  float spread;   // t / 2 and the part of the band that grows with the update
  float slope;    // the part that grows with |theta|, decay included
  float floor;    // infinite where the bound does not hold: then every element is decided exactly
  float least_v;  // v below it is decided exactly: where eps is tiny, it need not dominate the root
};
constexpr double kGrow = 1 + 0x1p-10;
constexpr float kSmallestV = 0x1p-100f;  // below it eps dominates the root, unless eps is tiny

inline AdamwScreen MakeAdamwScreen(const AdamwBand& band) {
  const double t = kGrow * band.k2 * band.s / std::sqrt(static_cast<double>(band.r));
  const bool holds =
      (band.s == 0 || (band.s >= 0x1p-60f && band.s <= 0x1p10f)) && band.eps <= 1 && band.r <= 0x1p14f;
  return {
      .half = static_cast<float>(0.5 * t),
      .spread = static_cast<float>(t * (0.5 + kGrow * band.b + 0x1p-20)),
      .slope = static_cast<float>(kGrow * (static_cast<double>(band.a) + band.k1)),
      .floor = holds ? static_cast<float>(kGrow * band.c) : INFINITY,
      .least_v = band.tiny_eps ? kSmallestV : -INFINITY,
  };
}

template <bool kIsBf16>
HWY_INLINE VF LoadMoments(const uint8_t* p, uint64_t i) {
  const DF df;
  if constexpr (kIsBf16) {
    const DU du;
    const hn::Rebind<uint16_t, DU> half;
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, LoadBytes(half, p + i * 2))));
  } else {
    return LoadBytes(df, p + i * 4);
  }
}

template <bool kBf16M, bool kBf16V>
struct AdamwRule {
  const uint8_t* theta;
  const uint8_t* m;
  const uint8_t* v;
  const AdamwBand& band;
  AdamwScreen screen;
  static constexpr uint32_t kBytesM = kBf16M ? 2 : 4, kBytesV = kBf16V ? 2 : 4;

  HWY_INLINE void Advance(uint32_t n) {
    theta += uint64_t{n} * sizeof(float);
    m += uint64_t{n} * kBytesM;
    v += uint64_t{n} * kBytesV;
  }
  HWY_INLINE void PrefetchAhead(uint32_t i) const {
    PrefetchElements(theta, i, sizeof(float));
    PrefetchElements(m, i, kBytesM);
    PrefetchElements(v, i, kBytesV);
  }
  HWY_INLINE void OperandsAt(uint32_t i, float& first, float& second) const {
    first = LoadMoment(m, i, kBf16M);
    second = LoadMoment(v, i, kBf16V);
  }

  HWY_INLINE hn::Mask<DF> Screen(uint32_t i, const Cell& cell) const {
    const DF df;
    const DU du;
    const VF m_at = LoadMoments<kBf16M>(m, i), v_at = LoadMoments<kBf16V>(v, i);
    const VU m_bits = hn::BitCast(du, m_at), v_bits = hn::BitCast(du, v_at);
    const VU size_mask = hn::Set(du, 0x7FFFFFFF);
    const VU m_size = hn::And(m_bits, size_mask);
    const VF root = hn::ApproximateReciprocalSqrt(hn::Max(hn::Set(df, kSmallestV), v_at));
    const VF p_size = hn::Mul(hn::BitCast(df, m_size), root);
    const VF p = hn::Xor(p_size, hn::BitCast(df, hn::AndNot(size_mask, hn::Xor(cell.bits, m_bits))));
    const VF common = hn::MulAdd(p_size, hn::Set(df, screen.spread),
                                 hn::MulAdd(cell.a, hn::Set(df, screen.slope), hn::Set(df, screen.floor)));
    const VF half = hn::Set(df, screen.half);
    auto kept = hn::And(hn::Lt(hn::MulAdd(p, half, common), cell.outer),
                        hn::Lt(hn::NegMulAdd(p, half, common), cell.inner));
    // As unsigned integers, a negative or NaN v is above the limit too.
    kept = hn::And(kept, hn::RebindMask(df, hn::Lt(hn::Max(v_bits, m_size), hn::Set(du, 0x71800000))));
    kept = hn::And(kept, hn::Ge(v_at, hn::Set(df, screen.least_v)));
    const auto zero = hn::Eq(hn::And(hn::Or(cell.bits, m_bits), size_mask), hn::Zero(du));
    return hn::Or(kept, hn::RebindMask(df, zero));
  }

  HWY_INLINE Estimate Undo(VF weights, VF m_at, VF v_at) const {
    const DF df;
    const VF root = hn::Add(hn::Sqrt(hn::Mul(v_at, hn::Set(df, band.r))), hn::Set(df, band.eps));
    const VF u = hn::Div(hn::Mul(hn::Set(df, band.s), m_at), root);
    const VF limit = hn::Set(df, 0x1p100f);
    auto in_range = hn::And(hn::Lt(v_at, limit), hn::Lt(hn::Abs(m_at), limit));
    const auto idle = hn::Eq(m_at, hn::Zero(df));
    if (band.tiny_eps) in_range = hn::And(in_range, hn::Or(idle, hn::Ge(v_at, hn::Set(df, kSmallestV))));
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
    InvertAll(AdamwRule<kM, kV>{Address(theta), Address(m), Address(v), band, MakeAdamwScreen(band)}, n,
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

#endif  // DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_
