// Passes that read everything: digest, compare, select_small. No software prefetch: with one or two streams
// the hardware's is as fast as a bare read, and measured hints cost up to a quarter.
#if defined(DELTAWIRE_KERNELS_CPU_SCAN_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_SCAN_INL_H
#undef DELTAWIRE_KERNELS_CPU_SCAN_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_SCAN_INL_H
#endif

#include "kernels/cpu/digest-inl.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

template <Cast kCast>
void DigestCast(const uint8_t* live, uint32_t n, uint64_t canonical, uint64_t key, uint64_t lanes[2]) {
  HWY_ALIGN Served<kCast> served[kChunk];
  auto* bytes = reinterpret_cast<uint8_t*>(served);
  for (uint32_t start = 0; start < n; start += kChunk) {
    const uint32_t size = n - start < kChunk ? n - start : kChunk;
    CastTo<kCast>(live + uint64_t{start} * sizeof(Stored<kCast>), size, bytes);
    DigestBytes(bytes, uint64_t{size} * sizeof(Served<kCast>), canonical, key, lanes);
    canonical += uint64_t{size} * sizeof(Served<kCast>);
  }
}

template <Cast kCast>
uint32_t CompareCast(const uint8_t* old, const uint8_t* live, uint32_t n, uint32_t* pos, void* old_bits,
                     void* new_bits) {
  using T = Served<kCast>;
  const hn::ScalableTag<T> d;
  constexpr uint32_t kLanes = HWY_LANES(T);
  constexpr uint64_t kStoredBytes = sizeof(Stored<kCast>);
  uint32_t count = 0;
  for (uint32_t start = 0; start < n; start += kChunk) {
    const uint32_t size = n - start < kChunk ? n - start : kChunk;
    const uint32_t first = count;
    uint32_t i = start;
    for (; i + 64 <= start + size; i += 64) {
      uint64_t word = 0;
      for (uint32_t j = 0; j < 64; j += kLanes) {
        const auto before = LoadBytes(d, old + uint64_t{i + j} * sizeof(T));
        const auto after = LoadServed<kCast>(live + uint64_t{i + j} * kStoredBytes);
        word |= MaskBits(d, hn::Ne(before, after)) << j;
      }
      count = AppendSparse(word, i, pos, count);
    }
    for (; i < start + size; ++i) {
      if (LoadAs<T>(old + uint64_t{i} * sizeof(T)) != ServedAt<kCast>(live, i)) pos[count++] = i;
    }
    for (uint32_t j = first; j < count; ++j) {
      static_cast<T*>(old_bits)[j] = LoadAs<T>(old + uint64_t{pos[j]} * sizeof(T));
      static_cast<T*>(new_bits)[j] = ServedAt<kCast>(live, pos[j]);
    }
  }
  return count;
}

template <Cast kCast>
uint32_t SelectSmallCast(const uint8_t* live, uint32_t n, uint32_t* pos, uint16_t* bits) {
  const hn::ScalableTag<uint16_t> d;
  constexpr uint32_t kLanes = HWY_LANES(uint16_t);
  const auto sizes = hn::Set(d, 0x7FFF), limit = hn::Set(d, kBf16SmallMagnitude + 1), zero = hn::Zero(d);
  uint32_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const uint8_t* p = live + uint64_t{i} * sizeof(Stored<kCast>);
    const auto served = LoadServed<kCast>(p);
    // 0x8000 is the only pattern of magnitude 0 that is not 0. Compared as signed: magnitudes are below 2^15.
    const hn::RebindToSigned<decltype(d)> di;
    const auto in_range =
        hn::RebindMask(d, hn::Lt(hn::BitCast(di, hn::And(served, sizes)), hn::BitCast(di, limit)));
    const auto member = hn::And(in_range, hn::Ne(served, zero));
    if (HWY_LIKELY(hn::AllFalse(d, member))) continue;
    const uint32_t before = count;
    count = AppendBits(MaskBits(d, member), i, pos, count);
    for (uint32_t j = before; j < count; ++j) bits[j] = ServedAt<kCast>(live, pos[j]);
  }
  for (; i < n; ++i) {
    const uint16_t served = ServedAt<kCast>(live, i);
    if (!InSetZ(served)) continue;
    bits[count] = served;
    pos[count++] = i;
  }
  return count;
}

}  // namespace

void Digest(Source live, Cast cast, uint32_t n, uint64_t canonical, uint64_t key, uint64_t lanes[2]) {
  const uint8_t* p = Address(live);
  switch (cast) {
    case Cast::kBits8:
    case Cast::kBits16:
    case Cast::kBits32:
    case Cast::kBits64: return DigestBytes(p, uint64_t{n} * ServedBytes(cast), canonical, key, lanes);
    case Cast::kF32ToBf16: return DigestCast<Cast::kF32ToBf16>(p, n, canonical, key, lanes);
    case Cast::kF32ToF16: return DigestCast<Cast::kF32ToF16>(p, n, canonical, key, lanes);
    case Cast::kBf16ToF32: return DigestCast<Cast::kBf16ToF32>(p, n, canonical, key, lanes);
    case Cast::kF16ToF32: return DigestCast<Cast::kF16ToF32>(p, n, canonical, key, lanes);
  }
}

uint32_t Compare(Source old, Source live, Cast cast, uint32_t n, uint32_t* pos, void* old_bits,
                 void* new_bits) {
  const uint8_t* o = Address(old);
  const uint8_t* p = Address(live);
  switch (cast) {
    case Cast::kBits8: return CompareCast<Cast::kBits8>(o, p, n, pos, old_bits, new_bits);
    case Cast::kBits16: return CompareCast<Cast::kBits16>(o, p, n, pos, old_bits, new_bits);
    case Cast::kBits32: return CompareCast<Cast::kBits32>(o, p, n, pos, old_bits, new_bits);
    case Cast::kBits64: return CompareCast<Cast::kBits64>(o, p, n, pos, old_bits, new_bits);
    case Cast::kF32ToBf16: return CompareCast<Cast::kF32ToBf16>(o, p, n, pos, old_bits, new_bits);
    case Cast::kF32ToF16: return CompareCast<Cast::kF32ToF16>(o, p, n, pos, old_bits, new_bits);
    case Cast::kBf16ToF32: return CompareCast<Cast::kBf16ToF32>(o, p, n, pos, old_bits, new_bits);
    case Cast::kF16ToF32: return CompareCast<Cast::kF16ToF32>(o, p, n, pos, old_bits, new_bits);
  }
  return 0;
}

uint32_t SelectSmall(Source live, Cast cast, uint32_t n, uint32_t* pos, uint16_t* bits) {
  if (cast == Cast::kF32ToBf16) return SelectSmallCast<Cast::kF32ToBf16>(Address(live), n, pos, bits);
  return SelectSmallCast<Cast::kBits16>(Address(live), n, pos, bits);
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_SCAN_INL_H
