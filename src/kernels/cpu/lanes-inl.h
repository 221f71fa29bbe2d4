// Vectors of served bits, masks to positions: what the CPU kernels share. Compiled once per Highway target.
#if defined(DELTAWIRE_KERNELS_CPU_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_LANES_INL_H
#undef DELTAWIRE_KERNELS_CPU_LANES_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_LANES_INL_H
#endif

#include <hwy/highway.h>

#include "kernels/element.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements a kernel takes through its passes while they are in the first-level cache.
inline constexpr uint32_t kChunk = 2048;

template <uint32_t kBytes>
using Unsigned = std::conditional_t<
    kBytes == 1, uint8_t,
    std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;
template <Cast kCast>
using Stored = Unsigned<StoredBytes(kCast)>;
template <Cast kCast>
using Served = Unsigned<ServedBytes(kCast)>;

// One element; the switch inside folds away.
template <Cast kCast>
HWY_INLINE Served<kCast> ServedAt(const uint8_t* live, uint64_t i) {
  return static_cast<Served<kCast>>(ServedBits(live + i * sizeof(Stored<kCast>), kCast));
}

// Addresses are rarely aligned, so memory is typed as bytes until it is in a register.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* p) {
  const hn::Repartition<uint8_t, D> bytes;
  return hn::BitCast(d, hn::LoadU(bytes, p));
}
template <class D>
HWY_INLINE void StoreBytes(D d, hn::Vec<D> v, uint8_t* p) {
  const hn::Repartition<uint8_t, D> bytes;
  hn::StoreU(hn::BitCast(bytes, v), bytes, p);
}

// BF16 bits of float32 bits, in the upper half of each lane; the lower half is arbitrary.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RoundToBf16(D du, V bits) {
  const hn::RebindToFloat<D> df;
  const V one = hn::Set(du, 1);
  const V rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), hn::And(hn::ShiftRight<16>(bits), one));
  const auto nan = hn::RebindMask(du, hn::IsNaN(hn::BitCast(df, bits)));
  return hn::IfThenElse(nan, hn::Set(du, 0xFFFFFFFF), rounded);
}

// F16C gives what F16FromF32 and F32FromF16 define; Highway's emulation below AVX2 treats NaN otherwise.
#undef DELTAWIRE_HAVE_F16C
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
#define DELTAWIRE_HAVE_F16C 1
#else
#define DELTAWIRE_HAVE_F16C 0
#endif

// One vector of served lanes from the stored elements at p.
template <Cast kCast, class D = hn::ScalableTag<Served<kCast>>>
HWY_INLINE hn::Vec<D> LoadServed(const uint8_t* p) {
  const D d;
  if constexpr (kCast == Cast::kF32ToBf16) {
    const hn::RepartitionToWide<D> du;
    const auto low = RoundToBf16(du, LoadBytes(du, p));
    const auto high = RoundToBf16(du, LoadBytes(du, p + hn::Lanes(du) * 4));
    return hn::ConcatOdd(d, hn::BitCast(d, high), hn::BitCast(d, low));
  } else if constexpr (kCast == Cast::kBf16ToF32) {
    const hn::Rebind<uint16_t, D> half;
    return hn::ShiftLeft<16>(hn::PromoteTo(d, hn::BitCast(half, LoadBytes(half, p))));
#if DELTAWIRE_HAVE_F16C
  } else if constexpr (kCast == Cast::kF32ToF16) {
    const hn::RepartitionToWide<D> du;
    const hn::RebindToFloat<decltype(du)> df;
    const hn::Rebind<hwy::float16_t, decltype(df)> df16;
    const hn::Half<D> dh;
    const auto low = hn::DemoteTo(df16, LoadBytes(df, p));
    const auto high = hn::DemoteTo(df16, LoadBytes(df, p + hn::Lanes(df) * 4));
    return hn::Combine(d, hn::BitCast(dh, high), hn::BitCast(dh, low));
  } else if constexpr (kCast == Cast::kF16ToF32) {
    const hn::RebindToFloat<D> df;
    const hn::Rebind<hwy::float16_t, decltype(df)> df16;
    return hn::BitCast(d, hn::PromoteTo(df, LoadBytes(df16, p)));
#else
  } else if constexpr (kCast == Cast::kF32ToF16 || kCast == Cast::kF16ToF32) {
    HWY_ALIGN Served<kCast> lanes[HWY_LANES(Served<kCast>)];
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = ServedAt<kCast>(p, i);
    return hn::Load(d, lanes);
#endif
  } else {
    return LoadBytes(d, p);
  }
}

// Dense served bits of n elements.
template <Cast kCast>
HWY_INLINE void CastTo(const uint8_t* live, uint64_t n, uint8_t* out) {
  const hn::ScalableTag<Served<kCast>> d;
  constexpr uint64_t kStoredBytes = sizeof(Stored<kCast>), kServedBytes = sizeof(Served<kCast>);
  uint64_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    StoreBytes(d, LoadServed<kCast>(live + i * kStoredBytes), out + i * kServedBytes);
  }
  for (; i < n; ++i) StoreAs<Served<kCast>>(out + i * kServedBytes, ServedAt<kCast>(live, i));
}

template <class D, class M>
HWY_INLINE uint64_t MaskBits(D d, M mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  return LoadAs<uint64_t>(bytes);
}

// Appends base + (index of each set bit) to pos[count...].
HWY_INLINE uint32_t AppendBits(uint64_t word, uint32_t base, uint32_t* pos, uint32_t count) {
  while (word != 0) {
    pos[count++] = base + static_cast<uint32_t>(__builtin_ctzll(word));
    word &= word - 1;
  }
  return count;
}
// The same where few bits are set. Four indices are written without a branch, which would be mispredicted
// about as often as an element changes, and by the scalar units, because the vector units are the narrow
// place. Room: four more than there are bits; of a word's 64 elements at least as many are behind `count`.
HWY_INLINE uint32_t AppendSparse(uint64_t word, uint32_t base, uint32_t* pos, uint32_t count) {
  const auto set = static_cast<uint32_t>(__builtin_popcountll(word));
  uint32_t* to = pos + count;
  for (int k = 0; k < 4; ++k) {
    to[k] = base + static_cast<uint32_t>(__builtin_ctzll(word | uint64_t{1} << 63));
    word &= word - 1;
  }
  if (HWY_UNLIKELY(set > 4)) AppendBits(word, base, to, 4);
  return count + set;
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_LANES_INL_H
