// Guarded inversion of AdamW, vectorised (docs/numerics.md). Same operations in the same order as
// InvertAdamwElement, so every verdict agrees.
#if defined(DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_
#undef DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_
#endif

#include "kernels/cpu/digest-inl.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
constexpr uint32_t kLanes = HWY_LANES(float);
static_assert(64 % kLanes == 0);

struct Estimate {
  VF undone, b;     // D and the half width of the band
  VF outer, inner;  // distances to the edges of the cell
  VF outward;       // D, positive where it points away from zero
};

HWY_INLINE Estimate Invert(VF theta, VF m, VF v, const AdamwBand& band) {
  const DF df;
  const DU du;
  const VU bits = hn::BitCast(du, theta);
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
  const VU odd = hn::And(hn::ShiftRight<16>(magnitude), hn::Set(du, 1));
  const VU cell = hn::And(hn::Add(hn::Add(magnitude, hn::Set(du, 0x7FFF)), odd), hn::Set(du, 0x7FFF0000));
  const VF a = hn::BitCast(df, magnitude);
  const VU half = hn::Set(du, 0x8000);
  // The cell of zero has its inner edge at zero.
  const VU below = hn::IfThenZeroElse(hn::Eq(cell, hn::Zero(du)), hn::Sub(cell, half));

  Estimate out;
  out.outer = hn::Sub(hn::BitCast(df, hn::Add(cell, half)), a);
  out.inner = hn::Sub(a, hn::BitCast(df, below));
  const VF root = hn::Add(hn::Sqrt(hn::Mul(v, hn::Set(df, band.r))), hn::Set(df, band.eps));
  const VF u = hn::Div(hn::Mul(hn::Set(df, band.s), m), root);
  out.undone = hn::Add(hn::Mul(hn::Set(df, band.k1), theta), hn::Mul(hn::Set(df, band.k2), u));
  out.outward = hn::Xor(out.undone, hn::AndNot(hn::BitCast(df, hn::Set(du, 0x7FFFFFFF)), theta));
  out.b = hn::Add(hn::Mul(hn::Set(df, band.a), a),
                  hn::Add(hn::Mul(hn::Set(df, band.b), hn::Abs(u)), hn::Set(df, band.c)));
  return out;
}

// v and |m| in the range that the proof covers. What it says of theta needs no test here: an infinite or NaN
// theta, or one that rounds to infinity, makes `outer` NaN or -infinity.
template <bool kTinyEps>
HWY_INLINE hn::Mask<DF> MomentsCovered(VF m, VF v) {
  const DF df;
  const VF limit = hn::Set(df, 0x1p100f);
  auto covered = hn::And(hn::Lt(v, limit), hn::Lt(hn::Abs(m), limit));
  if constexpr (kTinyEps) {
    covered = hn::And(covered, hn::Or(hn::Eq(m, hn::Zero(df)), hn::Ge(v, hn::Set(df, 0x1p-100f))));
  }
  return covered;
}

// A cheap sufficient condition for "kept": no root, no division, nothing that must round as the reference
// does. |u| is bounded by s |m| / sqrt(v r), because eps only shrinks it; the estimate of 1 / sqrt(v) is good
// to 2^-11. What it lets pass, the reference keeps; everything else is decided exactly in Settle. The factor
// kGrow and the allowance in `spread` exceed every rounding on both sides.
struct Prefilter {
  float half;    // t / 2 with t = k2 s / sqrt(r): half (p + |p|) is the update where it points outward
  float spread;  // t / 2 and the part of the band that grows with the update
  float slope;   // the part that grows with |theta|, decay included
  float floor;   // infinite where the bound does not hold: then every element is decided exactly
};
constexpr double kGrow = 1 + 0x1p-10;
constexpr float kSmallestV = 0x1p-100f;  // below it eps dominates the root, unless eps is tiny

HWY_INLINE Prefilter MakePrefilter(const AdamwBand& band) {
  const double t = kGrow * band.k2 * band.s / std::sqrt(static_cast<double>(band.r));
  const bool holds =
      (band.s == 0 || (band.s >= 0x1p-60f && band.s <= 0x1p10f)) && band.eps <= 1 && band.r <= 0x1p14f;
  return {
      .half = static_cast<float>(0.5 * t),
      .spread = static_cast<float>(t * (0.5 + kGrow * band.b + 0x1p-20)),
      .slope = static_cast<float>(kGrow * (static_cast<double>(band.a) + band.k1)),
      .floor = holds ? static_cast<float>(kGrow * band.c) : INFINITY,
  };
}

struct Screened {
  uint64_t flagged;  // lanes to decide exactly
  VU rounded;  // BF16 of theta in the upper halves, right in lanes that are not flagged: these are no ties
};

template <bool kTinyEps>
HWY_INLINE Screened Screen(VF theta, VF m, VF v, const Prefilter& filter) {
  const DF df;
  const DU du;
  const VU bits = hn::BitCast(du, theta), m_bits = hn::BitCast(du, m), v_bits = hn::BitCast(du, v);
  const VU size_mask = hn::Set(du, 0x7FFFFFFF), half_cell = hn::Set(du, 0x8000);
  const VU rounded = hn::Add(bits, half_cell);
  const VU cell = hn::And(rounded, hn::Set(du, 0x7FFF0000));
  const VF a = hn::BitCast(df, hn::And(bits, size_mask));
  // A tie has inner = 0; a NaN, an infinity, or a magnitude below 0x8000 makes one of them NaN: all flagged.
  const VF outer = hn::Sub(hn::BitCast(df, hn::Add(cell, half_cell)), a);
  const VF inner = hn::Sub(a, hn::BitCast(df, hn::Sub(cell, half_cell)));

  const VU m_size = hn::And(m_bits, size_mask);
  const VF root = hn::ApproximateReciprocalSqrt(hn::Max(hn::Set(df, kSmallestV), v));
  const VF p_size = hn::Mul(hn::BitCast(df, m_size), root);
  const VF sign = hn::BitCast(df, hn::AndNot(size_mask, hn::Xor(bits, m_bits)));
  const VF p = hn::Xor(p_size, sign);
  const VF common = hn::MulAdd(p_size, hn::Set(df, filter.spread),
                               hn::MulAdd(a, hn::Set(df, filter.slope), hn::Set(df, filter.floor)));
  const VF half = hn::Set(df, filter.half);
  // As unsigned integers, a negative or NaN v is above the limit too.
  auto kept =
      hn::And(hn::Lt(hn::MulAdd(p, half, common), outer), hn::Lt(hn::NegMulAdd(p, half, common), inner));
  kept = hn::And(kept, hn::RebindMask(df, hn::Lt(hn::Max(v_bits, m_size), hn::Set(du, 0x71800000))));
  if constexpr (kTinyEps) kept = hn::And(kept, hn::Ge(v, hn::Set(df, kSmallestV)));
  const auto zero = hn::RebindMask(df, hn::Eq(hn::And(hn::Or(bits, m_bits), size_mask), hn::Zero(du)));
  return {MaskBits(df, hn::Or(kept, zero)) ^ ((uint64_t{1} << kLanes) - 1), rounded};
}

// BF16 of the float32 next outside of x = middle + sign * half_width, in the low 16 bits of each lane.
template <bool kBelow>
HWY_INLINE VU Bf16Outside(hn::Vec<hn::Repartition<double, DF>> low_half,
                          hn::Vec<hn::Repartition<double, DF>> high_half) {
  const DF df;
  const DU du;
  const hn::RebindToSigned<DF> di;
  const hn::Repartition<double, DF> dd;
  const hn::Half<DF> dh;
  const auto f_low = hn::DemoteTo(dh, low_half), f_high = hn::DemoteTo(dh, high_half);
  const VF f = hn::Combine(df, f_high, f_low);
  const auto back_low = hn::PromoteTo(dd, f_low), back_high = hn::PromoteTo(dd, f_high);
  const uint64_t inward = kBelow ? MaskBits(dd, hn::Gt(back_low, low_half)) |
                                       MaskBits(dd, hn::Gt(back_high, high_half)) << (kLanes / 2)
                                 : MaskBits(dd, hn::Lt(back_low, low_half)) |
                                       MaskBits(dd, hn::Lt(back_high, high_half)) << (kLanes / 2);
  // One step in the ordinal order is the next float32. Around zero it differs from nextafter in the sign of
  // zero or by a subnormal, which no certificate uses.
  const auto bits = hn::BitCast(di, f);
  const auto magnitude = hn::Set(di, 0x7FFFFFFF);
  const auto ordinal = hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), magnitude));
  const auto moved = hn::Add(ordinal, hn::Set(di, kBelow ? -1 : 1));
  const auto outside = hn::Xor(moved, hn::And(hn::BroadcastSignBit(moved), magnitude));
  uint8_t mask_bytes[8];
  StoreAs<uint64_t>(mask_bytes, inward);
  const auto step = hn::LoadMaskBits(di, mask_bytes);
  return hn::ShiftRight<16>(RoundToBf16(du, hn::BitCast(du, hn::IfThenElse(step, outside, bits))));
}

struct Verdicts {
  VU low, high;  // BF16 of the two ends of the interval that holds the old value
  VU served;     // BF16 of theta
  hn::Mask<DU> changed, uncertain;
  hn::Mask<DU> neighbours;  // of the uncertain: low and high are one ordinal step apart
};

// What InvertAdamwElement says, lane by lane.
template <bool kTinyEps>
HWY_INLINE Verdicts Decide(VF theta, VF m, VF v, const AdamwBand& band) {
  const DF df;
  const DU du;
  const hn::Repartition<double, DF> dd;
  const hn::Half<DF> dh;
  const Estimate e = Invert(theta, m, v, band);
  const VU bits = hn::BitCast(du, theta), size_mask = hn::Set(du, 0x7FFFFFFF);
  // theta must be finite and round to a finite value.
  const auto finite = hn::Lt(hn::And(bits, size_mask), hn::Set(du, 0x7F7F8000));
  const auto covered = hn::And(finite, hn::RebindMask(du, MomentsCovered<kTinyEps>(m, v)));
  const auto inside = hn::RebindMask(
      du, hn::And(hn::Lt(hn::Add(e.outward, e.b), e.outer), hn::Lt(hn::Sub(e.b, e.outward), e.inner)));
  const auto zero = hn::Eq(hn::And(hn::Or(bits, hn::BitCast(du, m)), size_mask), hn::Zero(du));
  const auto same = hn::Or(hn::And(covered, inside), zero);

  const auto widen = hn::Set(dd, 1.0001);
  const auto half0 = hn::Mul(widen, hn::PromoteTo(dd, hn::LowerHalf(dh, e.b)));
  const auto half1 = hn::Mul(widen, hn::PromoteTo(dd, hn::UpperHalf(dh, e.b)));
  const auto middle0 =
      hn::Add(hn::PromoteTo(dd, hn::LowerHalf(dh, theta)), hn::PromoteTo(dd, hn::LowerHalf(dh, e.undone)));
  const auto middle1 =
      hn::Add(hn::PromoteTo(dd, hn::UpperHalf(dh, theta)), hn::PromoteTo(dd, hn::UpperHalf(dh, e.undone)));

  Verdicts out;
  out.low = Bf16Outside<true>(hn::Sub(middle0, half0), hn::Sub(middle1, half1));
  out.high = Bf16Outside<false>(hn::Add(middle0, half0), hn::Add(middle1, half1));
  out.served = hn::ShiftRight<16>(RoundToBf16(du, bits));
  const VU bf16_size = hn::Set(du, 0x7FFF);
  const VU low_size = hn::And(out.low, bf16_size), high_size = hn::And(out.high, bf16_size);
  const auto sized = hn::And(hn::Gt(hn::Min(low_size, high_size), hn::Set(du, kBf16SmallMagnitude)),
                             hn::Lt(hn::Max(low_size, high_size), hn::Set(du, 0x7F80)));
  const auto usable = hn::And(covered, sized);
  const auto certain = hn::And(usable, hn::Eq(out.low, out.high));
  out.changed = hn::And(hn::AndNot(same, certain), hn::Ne(out.low, out.served));
  out.uncertain = hn::AndNot(same, hn::Not(certain));
  // low <= high as values; with equal signs one ordinal step is one step of the magnitude.
  const VU apart = hn::Sub(hn::Max(out.low, out.high), hn::Min(out.low, out.high));
  out.neighbours = hn::And(usable, hn::Eq(apart, hn::Set(du, 1)));
  return out;
}

// Decides the flagged elements of one chunk, whose first element is `base` of the call. Rounds `served` again
// where the screen's rounding does not hold.
template <bool kTinyEps>
HWY_INLINE void Settle(const uint8_t* theta, const uint8_t* m, const uint8_t* v, const AdamwBand& band,
                       uint32_t base, const uint32_t* flagged, uint32_t count, uint16_t* served,
                       Inverted* out) {
  const DF df;
  const DU du;
  const hn::Rebind<uint16_t, DF> d16;
  HWY_ALIGN float lanes[3][kLanes] = {};
  HWY_ALIGN uint32_t at[kLanes] = {};
  HWY_ALIGN uint32_t pos[kLanes];
  HWY_ALIGN uint16_t bits[kLanes];
  for (uint32_t i = 0; i < count; i += kLanes) {
    const uint32_t batch = count - i < kLanes ? count - i : kLanes;
    for (uint32_t j = 0; j < batch; ++j) {
      at[j] = flagged[i + j];
      const uint64_t byte = uint64_t{at[j]} * sizeof(float);
      lanes[0][j] = LoadAs<float>(theta + byte);
      lanes[1][j] = LoadAs<float>(m + byte);
      lanes[2][j] = LoadAs<float>(v + byte);
    }
    const auto real = hn::FirstN(du, batch);
    const VF old_theta = hn::Load(df, lanes[0]);
    const Verdicts verdicts =
        Decide<kTinyEps>(old_theta, hn::Load(df, lanes[1]), hn::Load(df, lanes[2]), band);
    const VU position = hn::Add(hn::Load(du, at), hn::Set(du, base));

    const VU screened = hn::ShiftRight<16>(hn::Add(hn::BitCast(du, old_theta), hn::Set(du, 0x8000)));
    if (HWY_UNLIKELY(!hn::AllFalse(du, hn::And(real, hn::Ne(screened, verdicts.served))))) {
      for (uint32_t j = 0; j < batch; ++j) served[at[j]] = Bf16FromF32(std::bit_cast<uint32_t>(lanes[0][j]));
    }

    const auto changed = hn::And(real, verdicts.changed);
    const auto changed_count = static_cast<uint32_t>(hn::CountTrue(du, changed));
    const VU changed_pos = hn::Compress(position, changed);
    const auto changed_old = hn::TruncateTo(d16, hn::Compress(verdicts.low, changed));
    if (HWY_LIKELY(batch == kLanes)) {
      // A whole vector fits: these kLanes elements are not in the list yet, and the list has room for all.
      hn::StoreU(changed_pos, du, out->changed + out->changed_count);
      hn::StoreU(changed_old, d16, out->changed_old + out->changed_count);
    } else {
      hn::Store(changed_pos, du, pos);
      hn::Store(changed_old, d16, bits);
      std::memcpy(out->changed + out->changed_count, pos, changed_count * sizeof(uint32_t));
      std::memcpy(out->changed_old + out->changed_count, bits, changed_count * sizeof(uint16_t));
    }
    out->changed_count += changed_count;

    const auto uncertain = hn::And(real, verdicts.uncertain);
    if (HWY_LIKELY(hn::AllFalse(du, uncertain))) continue;
    hn::Store(position, du, pos);
    hn::Store(hn::TruncateTo(d16, verdicts.low), d16, bits);
    const uint64_t neighbours = MaskBits(du, verdicts.neighbours);
    for (uint64_t left = MaskBits(du, uncertain); left != 0; left &= left - 1) {
      const int j = __builtin_ctzll(left);
      const bool span = (neighbours >> j) & 1;
      out->uncertain[out->uncertain_count] = pos[j];
      out->uncertain_low[out->uncertain_count] = span ? bits[j] : 0;
      out->uncertain_span[out->uncertain_count++] = span;
    }
  }
}

// Into the second-level cache, a chunk ahead: keeps memory busy while Settle and the digest run.
constexpr uint32_t kAheadBytes = kChunk * sizeof(float);

template <bool kTinyEps>
HWY_INLINE void InvertAll(const uint8_t* theta, const uint8_t* m, const uint8_t* v, const AdamwBand& band,
                          uint32_t n, uint64_t canonical, uint64_t key, uint64_t lanes[2], Inverted* out) {
  const DF df;
  const hn::Repartition<uint16_t, DF> d16;
  const Prefilter filter = MakePrefilter(band);
  HWY_ALIGN uint32_t flagged[kChunk];
  HWY_ALIGN uint16_t served[kChunk];
  for (uint32_t start = 0; start < n; start += kChunk) {
    const uint32_t size = n - start < kChunk ? n - start : kChunk;
    uint32_t count = 0, i = 0;
    for (; i + 64 <= size; i += 64) {
      uint64_t word = 0;
      for (uint32_t j = 0; j < 64; j += 2 * kLanes) {
        const uint64_t at = uint64_t{i + j} * sizeof(float), next = at + kLanes * sizeof(float);
        for (uint32_t line = 0; line < 2 * kLanes * sizeof(float); line += 64) {
          __builtin_prefetch(theta + at + line + kAheadBytes, 0, 2);
          __builtin_prefetch(m + at + line + kAheadBytes, 0, 2);
          __builtin_prefetch(v + at + line + kAheadBytes, 0, 2);
        }
        const Screened low =
            Screen<kTinyEps>(LoadBytes(df, theta + at), LoadBytes(df, m + at), LoadBytes(df, v + at), filter);
        const Screened high = Screen<kTinyEps>(LoadBytes(df, theta + next), LoadBytes(df, m + next),
                                               LoadBytes(df, v + next), filter);
        word |= low.flagged << j | high.flagged << (j + kLanes);
        hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, high.rounded), hn::BitCast(d16, low.rounded)), d16,
                   served + i + j);
      }
      count = AppendFullWord(word, i, flagged, count);
    }
    for (; i < size; ++i) {
      served[i] = Bf16FromF32(LoadAs<uint32_t>(theta + uint64_t{i} * sizeof(float)));
      flagged[count++] = i;
    }
    Settle<kTinyEps>(theta, m, v, band, start, flagged, count, served, out);
    if (lanes != nullptr) {
      DigestBytes(reinterpret_cast<const uint8_t*>(served), uint64_t{size} * 2, canonical, key, lanes);
    }
    const uint64_t bytes = uint64_t{size} * sizeof(float);
    theta += bytes;
    m += bytes;
    v += bytes;
    canonical += uint64_t{size} * 2;
  }
}

}  // namespace

void InvertAdamw(Source theta, Source m, Source v, const AdamwBand& band, uint32_t n, uint64_t canonical,
                 uint64_t key, uint64_t lanes[2], Inverted* out) {
  out->changed_count = 0;
  out->uncertain_count = 0;
  if (band.tiny_eps) {
    InvertAll<true>(Address(theta), Address(m), Address(v), band, n, canonical, key, lanes, out);
  } else {
    InvertAll<false>(Address(theta), Address(m), Address(v), band, n, canonical, key, lanes, out);
  }
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_ADAMW_INL_H_
