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
  const VU cell =
      hn::And(hn::Add(hn::Add(magnitude, hn::Set(du, 0x7FFF)), odd), hn::Set(du, 0x7FFF0000));
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

// Lanes that are neither kept nor zero.
template <bool kTinyEps>
HWY_INLINE uint64_t Flagged(VF theta, VF m, VF v, const AdamwBand& band) {
  const DF df;
  const DU du;
  const Estimate e = Invert(theta, m, v, band);
  const auto inside = hn::And(hn::Lt(hn::Add(e.outward, e.b), e.outer), hn::Lt(hn::Sub(e.b, e.outward), e.inner));
  const auto keep = hn::And(inside, MomentsCovered<kTinyEps>(m, v));
  const VU sizes = hn::And(hn::Or(hn::BitCast(du, theta), hn::BitCast(du, m)), hn::Set(du, 0x7FFFFFFF));
  const auto zero = hn::RebindMask(df, hn::Eq(sizes, hn::Zero(du)));
  return MaskBits(df, hn::Or(keep, zero)) ^ ((uint64_t{1} << kLanes) - 1);
}

// BF16 of the float32 next outside of x = middle + sign * half_width, in the low 16 bits of each lane.
template <bool kBelow>
HWY_INLINE VU Bf16Outside(hn::Vec<hn::Repartition<double, DF>> low_half, hn::Vec<hn::Repartition<double, DF>> high_half) {
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

struct Certificates {
  HWY_ALIGN uint32_t low[kLanes];
  HWY_ALIGN uint32_t high[kLanes];
  uint64_t usable;  // lanes whose two ends may be believed
};

template <bool kTinyEps>
HWY_INLINE void Certify(VF theta, VF m, VF v, const AdamwBand& band, Certificates& out) {
  const DF df;
  const DU du;
  const hn::Repartition<double, DF> dd;
  const hn::Half<DF> dh;
  const Estimate e = Invert(theta, m, v, band);
  const auto widen = hn::Set(dd, 1.0001);
  const auto half_low = hn::Mul(widen, hn::PromoteTo(dd, hn::LowerHalf(dh, e.b)));
  const auto half_high = hn::Mul(widen, hn::PromoteTo(dd, hn::UpperHalf(dh, e.b)));
  const auto middle_low = hn::Add(hn::PromoteTo(dd, hn::LowerHalf(dh, theta)), hn::PromoteTo(dd, hn::LowerHalf(dh, e.undone)));
  const auto middle_high = hn::Add(hn::PromoteTo(dd, hn::UpperHalf(dh, theta)), hn::PromoteTo(dd, hn::UpperHalf(dh, e.undone)));
  const VU low = Bf16Outside<true>(hn::Sub(middle_low, half_low), hn::Sub(middle_high, half_high));
  const VU high = Bf16Outside<false>(hn::Add(middle_low, half_low), hn::Add(middle_high, half_high));
  hn::Store(low, du, out.low);
  hn::Store(high, du, out.high);

  const VU size_mask = hn::Set(du, 0x7FFF), tiny = hn::Set(du, kBf16SmallMagnitude), infinity = hn::Set(du, 0x7F80);
  const VU low_size = hn::And(low, size_mask), high_size = hn::And(high, size_mask);
  const auto sized = hn::And(hn::Gt(hn::Min(low_size, high_size), tiny), hn::Lt(hn::Max(low_size, high_size), infinity));
  // theta itself must be finite and round to a finite value.
  const VU magnitude = hn::And(hn::BitCast(du, theta), hn::Set(du, 0x7FFFFFFF));
  const auto finite = hn::Lt(magnitude, hn::Set(du, 0x7F7F8000));
  out.usable = MaskBits(du, hn::And(sized, finite)) & MaskBits(df, MomentsCovered<kTinyEps>(m, v));
}

// The flagged elements of one chunk to the result lists.
template <bool kTinyEps>
HWY_INLINE void Settle(const uint8_t* theta, const uint8_t* m, const uint8_t* v, const AdamwBand& band, uint32_t base,
            const uint32_t* flagged, uint32_t count, Inverted* out) {
  const DF df;
  HWY_ALIGN float lanes[3][kLanes] = {};
  Certificates certificates;
  uint32_t changed = out->changed_count, uncertain = out->uncertain_count;
  for (uint32_t i = 0; i < count; i += kLanes) {
    const uint32_t batch = count - i < kLanes ? count - i : kLanes;
    for (uint32_t j = 0; j < batch; ++j) {
      const uint64_t at = uint64_t{flagged[i + j]} * sizeof(float);
      lanes[0][j] = LoadAs<float>(theta + at);
      lanes[1][j] = LoadAs<float>(m + at);
      lanes[2][j] = LoadAs<float>(v + at);
    }
    Certify<kTinyEps>(hn::Load(df, lanes[0]), hn::Load(df, lanes[1]), hn::Load(df, lanes[2]), band, certificates);
    for (uint32_t j = 0; j < batch; ++j) {
      const auto low = static_cast<uint16_t>(certificates.low[j]), high = static_cast<uint16_t>(certificates.high[j]);
      const bool usable = (certificates.usable >> j) & 1;
      const bool certain = usable && low == high;
      const bool differs = low != Bf16FromF32(std::bit_cast<uint32_t>(lanes[0][j]));
      const bool neighbours = usable && static_cast<int16_t>(Ordinal(high)) - static_cast<int16_t>(Ordinal(low)) == 1;
      // Both lists have room for every element seen, so the entries are written and then counted or not.
      const uint32_t position = base + flagged[i + j];
      out->changed[changed] = position;
      out->changed_old[changed] = low;
      changed += certain && differs;
      if (!certain) {
        out->uncertain[uncertain] = position;
        out->uncertain_low[uncertain] = neighbours ? low : 0;
        out->uncertain_span[uncertain++] = neighbours;
      }
    }
  }
  out->changed_count = changed;
  out->uncertain_count = uncertain;
}

template <bool kTinyEps>
HWY_INLINE void InvertAll(const uint8_t* theta, const uint8_t* m, const uint8_t* v, const AdamwBand& band, uint32_t n,
               uint64_t canonical, uint64_t key, uint64_t lanes[2], Inverted* out) {
  const DF df;
  const DU du;
  const hn::Repartition<uint16_t, DF> d16;
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
          PrefetchAhead(theta + at + line);
          PrefetchAhead(m + at + line);
          PrefetchAhead(v + at + line);
        }
        const VF theta0 = LoadBytes(df, theta + at), theta1 = LoadBytes(df, theta + next);
        word |= Flagged<kTinyEps>(theta0, LoadBytes(df, m + at), LoadBytes(df, v + at), band) << j;
        word |= Flagged<kTinyEps>(theta1, LoadBytes(df, m + next), LoadBytes(df, v + next), band) << (j + kLanes);
        const VU low = RoundToBf16(du, hn::BitCast(du, theta0)), high = RoundToBf16(du, hn::BitCast(du, theta1));
        hn::StoreU(hn::ConcatOdd(d16, hn::BitCast(d16, high), hn::BitCast(d16, low)), d16, served + i + j);
      }
      count = AppendFullWord(word, i, flagged, count);
    }
    for (; i < size; ++i) {
      const uint64_t at = uint64_t{i} * sizeof(float);
      const auto bits = LoadAs<float>(theta + at);
      served[i] = Bf16FromF32(std::bit_cast<uint32_t>(bits));
      const AdamwVerdict verdict = InvertAdamwElement(bits, LoadAs<float>(m + at), LoadAs<float>(v + at), band);
      if (verdict.kind != AdamwVerdict::kSame) flagged[count++] = i;
    }
    DigestBytes(reinterpret_cast<const uint8_t*>(served), uint64_t{size} * 2, canonical, key, lanes);
    Settle<kTinyEps>(theta, m, v, band, start, flagged, count, out);
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
