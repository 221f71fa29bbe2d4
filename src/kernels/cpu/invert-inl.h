// Guarded inversion of an optimizer step, vectorised (docs/numerics.md): what the rules of all optimizers
// share. Same operations in the same order as DecideElement, so every verdict agrees.
#if defined(DELTAWIRE_KERNELS_CPU_INVERT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_INVERT_INL_H
#undef DELTAWIRE_KERNELS_CPU_INVERT_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_INVERT_INL_H
#endif

#include "kernels/cpu/digest-inl.h"
#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/screen.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
constexpr uint32_t kLanes = HWY_LANES(float);
static_assert(64 % kLanes == 0);

using D16 = hn::Repartition<uint16_t, DF>;
using I16 = hn::RebindToSigned<D16>;
using V16 = hn::Vec<D16>;
using VI16 = hn::Vec<I16>;
constexpr uint32_t kPair = 2 * kLanes;  // elements that the screen takes at once

// A rule knows one optimizer and the addresses of its operands. It offers
//   theta                 the weights
//   screen                constants of the screen
//   PrefetchAhead(i)      the cache lines of kPair elements, kElementsAhead elements from i
//   kPrefetch             whether that pays where there is no digest
//   OperandOf(i)          what the screen needs of kPair elements from i
//   OperandsAt(i, a, b)   one element's operands as float32
//   Undo(theta, a, b)     the exact estimate
struct Operand {
  VI16 size;       // logarithm of the operand (cpu/screen.h)
  VI16 direction;  // its sign bit is that of the update
  hn::Mask<I16> usable;
};
struct Estimate {
  VF undone, b;           // D and the half width of the band
  hn::Mask<DF> in_range;  // the state is in the range of the proof
  hn::Mask<DF> idle;      // the update is +-0
};

// kernels::IsZero: by bits.
HWY_INLINE hn::Mask<DF> IsZero(VF x) {
  const DU du;
  return hn::RebindMask(DF(), hn::Eq(hn::ShiftLeft<1>(hn::BitCast(du, x)), hn::Zero(du)));
}

// The upper halves of 2 kLanes words.
template <class V>
HWY_INLINE VI16 UpperHalves(V low, V high) {
  const D16 d16;
  return hn::BitCast(I16(), hn::ConcatOdd(d16, hn::BitCast(d16, high), hn::BitCast(d16, low)));
}

// Keeps a loaded vector in its register: GCC 12 would load it anew for each use, and loads are a narrow
// place.
template <class V>
HWY_INLINE V InRegister(V v) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  asm("" : "+v"(v.raw));
#elif HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86
  asm("" : "+x"(v.raw));
#endif
  return v;
}

// Lanes that the exact verdict surely keeps. Never a tie: its distance is 0.
HWY_INLINE hn::Mask<I16> Passes(VU low, VU high, const Operand& operand, const Screen& screen) {
  const DF df;
  const DU du;
  const D16 d16;
  const I16 d;
  // The edge that is nearest in bits has the upper half of the weight. The difference is exact.
  const VU upper = hn::Set(du, 0xFFFF0000), middle = hn::Set(du, 0x8000);
  const auto from_edge = [&](VU bits) {
    return hn::Sub(hn::BitCast(df, bits), hn::BitCast(df, hn::OrAnd(middle, bits, upper)));
  };
  const VI16 offset = UpperHalves(from_edge(low), from_edge(high));
  const VI16 distance = hn::And(offset, hn::Set(d, 0x7FFF));
  const VI16 exponent =
      hn::Sub(hn::And(UpperHalves(low, high), hn::Set(d, 0x7F80)), hn::Set(d, screen.least));
  // The far edge is at least 2^14 units away; so is the near one of a power of two, where bits mislead.
  const VI16 far = hn::Add(exponent, hn::Set(d, screen.far));
  // What is undone leads to the edge if it points against the offset.
  const auto to_edge = hn::Lt(hn::Xor(offset, operand.direction), hn::Zero(d));
  const VI16 reach = hn::IfThenElse(to_edge, hn::Min(distance, far), far);
  const auto near = hn::Lt(hn::SaturatedAdd(operand.size, hn::Set(d, screen.factor)), reach);
  const auto apart = hn::Gt(distance, hn::Add(exponent, hn::Set(d, screen.close)));
  const auto ordinary = hn::RebindMask(d, hn::Lt(hn::BitCast(d16, exponent), hn::Set(d16, screen.exponents)));
  return hn::And(hn::And(near, apart), hn::And(ordinary, operand.usable));
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
  VU low;     // BF16 of the lower end of the interval that holds the old value
  VU served;  // BF16 of theta
  hn::Mask<DU> changed, uncertain;
  hn::Mask<DU> neighbours;  // of the uncertain: low and high are one ordinal step apart
};

// What DecideElement says, lane by lane.
HWY_INLINE Verdicts Decide(VF theta, const Estimate& e) {
  const DF df;
  const DU du;
  const hn::Repartition<double, DF> dd;
  const hn::Half<DF> dh;
  const VU bits = hn::BitCast(du, theta);
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
  const VU odd = hn::And(hn::ShiftRight<16>(magnitude), hn::Set(du, 1));
  const VU cell = hn::And(hn::Add(hn::Add(magnitude, hn::Set(du, 0x7FFF)), odd), hn::Set(du, 0x7FFF0000));
  const VF a = hn::BitCast(df, magnitude);
  const VU half = hn::Set(du, 0x8000);
  // The cell of zero has its inner edge at zero.
  const VU below = hn::IfThenZeroElse(hn::Eq(cell, hn::Zero(du)), hn::Sub(cell, half));
  const VF outer = hn::Sub(hn::BitCast(df, hn::Add(cell, half)), a);
  const VF inner = hn::Sub(a, hn::BitCast(df, below));
  const VF outward = hn::BitCast(df, hn::Xor(hn::BitCast(du, e.undone), hn::Xor(bits, magnitude)));

  // theta must be finite and round to a finite value.
  const auto finite = hn::Lt(magnitude, hn::Set(du, 0x7F7F8000));
  const auto covered = hn::And(finite, hn::RebindMask(du, e.in_range));
  const auto inside =
      hn::RebindMask(du, hn::And(hn::Lt(hn::Add(outward, e.b), outer), hn::Lt(hn::Sub(e.b, outward), inner)));
  const auto zero = hn::And(hn::Eq(bits, hn::Zero(du)), hn::RebindMask(du, e.idle));
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
  const VU upper = Bf16Outside<false>(hn::Add(middle0, half0), hn::Add(middle1, half1));
  out.served = hn::ShiftRight<16>(RoundToBf16(du, bits));
  const VU bf16_size = hn::Set(du, 0x7FFF);
  const VU low_size = hn::And(out.low, bf16_size), high_size = hn::And(upper, bf16_size);
  const auto sized = hn::And(hn::Gt(hn::Min(low_size, high_size), hn::Set(du, kBf16SmallMagnitude)),
                             hn::Lt(hn::Max(low_size, high_size), hn::Set(du, 0x7F80)));
  const auto usable = hn::And(covered, sized);
  const auto certain = hn::And(usable, hn::Eq(out.low, upper));
  out.changed = hn::And(hn::AndNot(same, certain), hn::Ne(out.low, out.served));
  out.uncertain = hn::AndNot(same, hn::Not(certain));
  // low <= high as values; with equal signs one ordinal step is one step of the magnitude.
  const VU apart = hn::Sub(hn::Max(out.low, upper), hn::Min(out.low, upper));
  out.neighbours = hn::And(usable, hn::Eq(apart, hn::Set(du, 1)));
  return out;
}

// Served bits on their way to the digest. What the screen does not pass may be a tie or a NaN, which it
// rounds wrongly; then that is repaired.
struct Serving {
  uint16_t* bits = nullptr;  // null: nobody wants them
  uint32_t first = 0;        // element of bits[0]

  // An element that is served already was repaired before.
  HWY_INLINE void Repair(const uint8_t* theta, uint32_t i) const {
    if (i < first) return;
    bits[i - first] = Bf16FromF32(LoadAs<uint32_t>(theta + uint64_t{i} * sizeof(float)));
  }
};

// Decides the flagged elements, kLanes at a time.
template <class Rule>
HWY_NOINLINE void Settle(const Rule& rule, const uint32_t* flagged, uint32_t count, const Serving& serving,
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
      lanes[0][j] = LoadAs<float>(rule.theta + uint64_t{at[j]} * sizeof(float));
      rule.OperandsAt(at[j], lanes[1][j], lanes[2][j]);
    }
    const auto real = hn::FirstN(du, batch);
    const VF theta = hn::Load(df, lanes[0]);
    const Verdicts verdicts = Decide(theta, rule.Undo(theta, hn::Load(df, lanes[1]), hn::Load(df, lanes[2])));
    const VU position = hn::Load(du, at);

    const VU screened = hn::ShiftRight<16>(hn::Add(hn::BitCast(du, theta), hn::Set(du, 0x8000)));
    if (serving.bits != nullptr &&
        HWY_UNLIKELY(!hn::AllFalse(du, hn::And(real, hn::Ne(screened, verdicts.served))))) {
      for (uint32_t j = 0; j < batch; ++j) serving.Repair(rule.theta, at[j]);
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

// Into the second-level cache, for memory to be busy while Settle and the digest run. Any distance from 1024
// to 8192 elements did equally well.
constexpr uint32_t kElementsAhead = 4096;

HWY_INLINE void PrefetchElements(const uint8_t* p, uint64_t i, uint32_t width) {
  const uint8_t* first = p + (i + kElementsAhead) * width;
  for (uint32_t line = 0; line < kPair * width; line += 64) __builtin_prefetch(first + line, 0, 2);
}

constexpr uint32_t kServedAtOnce = 2048;  // a row of the digest

// Little waits to be decided: while Settle and the digest run, memory works on what the screen has asked for,
// and would be idle soon.
template <bool kDigest, class Rule>
HWY_INLINE void InvertAll(const Rule& rule, uint32_t n, uint64_t canonical, uint64_t key, uint64_t lanes[2],
                          Inverted* out) {
  const DU du;
  HWY_ALIGN uint32_t flagged[kLanes + 64 + 4];
  HWY_ALIGN uint16_t served[kServedAtOnce];
  Serving serving{kDigest ? served : nullptr, 0};
  uint32_t count = 0, i = 0;
  // Up to element i, of which flagged ones may still wait.
  const auto digest = [&] {
    for (uint32_t k = 0; k < count; ++k) serving.Repair(rule.theta, flagged[k]);
    const uint64_t bytes = uint64_t{i - serving.first} * sizeof(uint16_t);
    DigestBytes(reinterpret_cast<const uint8_t*>(served), bytes, canonical, key, lanes);
    canonical += bytes;
    serving.first = i;
  };
  out->changed_count = 0;
  out->uncertain_count = 0;
  while (i + 64 <= n) {
    uint64_t word = 0;
    for (uint32_t j = 0; j < 64; j += kPair) {
      if constexpr (kDigest || Rule::kPrefetch) rule.PrefetchAhead(i + j);
      const uint8_t* at = rule.theta + uint64_t{i + j} * sizeof(float);
      const VU low = InRegister(LoadBytes(du, at));
      const VU high = InRegister(LoadBytes(du, at + kLanes * sizeof(float)));
      word |= MaskBits(I16(), Passes(low, high, rule.OperandOf(i + j), rule.screen)) << j;
      if constexpr (kDigest) {
        const D16 d16;
        const VU half = hn::Set(du, 0x8000);
        hn::StoreU(hn::BitCast(d16, UpperHalves(hn::Add(low, half), hn::Add(high, half))), d16,
                   served + (i + j - serving.first));
      }
    }
    count = AppendSparse(~word, i, flagged, count);
    i += 64;
    if (count >= kLanes) {
      const uint32_t whole = count / kLanes * kLanes;
      Settle(rule, flagged, whole, serving, out);
      hn::StoreU(hn::LoadU(du, flagged + whole), du, flagged);
      count -= whole;
    }
    if constexpr (kDigest) {
      if (i - serving.first == kServedAtOnce) digest();
    }
  }
  for (; i < n; ++i) {
    if (count == kLanes) {
      Settle(rule, flagged, count, serving, out);
      count = 0;
    }
    flagged[count++] = i;
    if constexpr (kDigest) serving.Repair(rule.theta, i);
  }
  if constexpr (kDigest) digest();
  Settle(rule, flagged, count, serving, out);
}

template <class Rule>
HWY_INLINE void Invert(const Rule& rule, uint32_t n, uint64_t canonical, uint64_t key, uint64_t lanes[2],
                       Inverted* out) {
  if (lanes != nullptr) {
    InvertAll<true>(rule, n, canonical, key, lanes, out);
  } else {
    InvertAll<false>(rule, n, canonical, key, lanes, out);
  }
}

}  // namespace
}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_INVERT_INL_H
