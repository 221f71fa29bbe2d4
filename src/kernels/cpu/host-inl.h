// Change lists: their digest, their ordinal steps.
#if defined(DELTAWIRE_KERNELS_CPU_HOST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HOST_INL_H_
#undef DELTAWIRE_KERNELS_CPU_HOST_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_HOST_INL_H_
#endif

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

template <typename T>
void DigestChangesWidth(uint64_t key, uint64_t canonical, const uint32_t* pos, uint32_t k, const void* old_bits,
                        const void* new_bits, uint64_t lanes[2]) {
  const auto* before = static_cast<const T*>(old_bits);
  const auto* after = static_cast<const T*>(new_bits);
  uint32_t i = 0;
  while (i < k) {
    // The right factors hold for a row of 4 KiB; changes mostly come in ascending order, several to a row.
    const uint64_t row = (canonical + uint64_t{pos[i]} * sizeof(T)) / (8 * kDigestRowWords);
    uint64_t sum0 = 0, sum1 = 0;
    do {
      const uint64_t byte = canonical + uint64_t{pos[i]} * sizeof(T);
      if (byte / (8 * kDigestRowWords) != row) break;
      const uint64_t word = byte / 8 % kDigestRowWords;
      const uint64_t was = DigestWord(LoadAs<T>(before + i), byte), is = DigestWord(LoadAs<T>(after + i), byte);
      sum0 += kDigestLeft.lane[0][word] * (is - was);
      sum1 += kDigestLeft.lane[1][word] * (__builtin_bswap64(is) - __builtin_bswap64(was));
    } while (++i < k);
    lanes[0] += DigestRight(key, row, 0) * sum0;
    lanes[1] += DigestRight(key, row, 1) * sum1;
  }
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V OrdinalLanes(D d, V bits) {
  using T = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  const V negative = hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(di, bits)));
  return hn::Xor(bits, hn::And(negative, hn::Set(d, static_cast<T>(static_cast<T>(~T{0}) >> 1))));
}

template <typename T, bool kApply>
void StepsWidth(const void* first, const void* second, uint32_t k, void* out) {
  const hn::ScalableTag<T> d;
  const auto* a = static_cast<const uint8_t*>(first);
  const auto* b = static_cast<const uint8_t*>(second);
  auto* to = static_cast<uint8_t*>(out);
  uint64_t i = 0;
  for (; i + hn::Lanes(d) <= k; i += hn::Lanes(d)) {
    const auto ordinal = OrdinalLanes(d, LoadBytes(d, a + i * sizeof(T)));
    const auto other = LoadBytes(d, b + i * sizeof(T));
    const auto result = kApply ? OrdinalLanes(d, hn::Add(ordinal, other)) : hn::Sub(OrdinalLanes(d, other), ordinal);
    StoreBytes(d, result, to + i * sizeof(T));
  }
  for (; i < k; ++i) {
    const T ordinal = Ordinal(LoadAs<T>(a + i * sizeof(T)));
    const T other = LoadAs<T>(b + i * sizeof(T));
    StoreAs<T>(to + i * sizeof(T),
               kApply ? Ordinal(static_cast<T>(ordinal + other)) : static_cast<T>(Ordinal(other) - ordinal));
  }
}

}  // namespace

void DigestChanges(uint64_t key, uint64_t canonical, uint32_t width, const uint32_t* pos, uint32_t k,
                   const void* old_bits, const void* new_bits, uint64_t lanes[2]) {
  switch (width) {
    case 1: return DigestChangesWidth<uint8_t>(key, canonical, pos, k, old_bits, new_bits, lanes);
    case 2: return DigestChangesWidth<uint16_t>(key, canonical, pos, k, old_bits, new_bits, lanes);
    case 4: return DigestChangesWidth<uint32_t>(key, canonical, pos, k, old_bits, new_bits, lanes);
    case 8: return DigestChangesWidth<uint64_t>(key, canonical, pos, k, old_bits, new_bits, lanes);
  }
}

void Steps(uint32_t width, const void* old_bits, const void* new_bits, uint32_t k, void* steps) {
  switch (width) {
    case 1: return StepsWidth<uint8_t, false>(old_bits, new_bits, k, steps);
    case 2: return StepsWidth<uint16_t, false>(old_bits, new_bits, k, steps);
    case 4: return StepsWidth<uint32_t, false>(old_bits, new_bits, k, steps);
    case 8: return StepsWidth<uint64_t, false>(old_bits, new_bits, k, steps);
  }
}

void ApplySteps(uint32_t width, const void* old_bits, const void* steps, uint32_t k, void* new_bits) {
  switch (width) {
    case 1: return StepsWidth<uint8_t, true>(old_bits, steps, k, new_bits);
    case 2: return StepsWidth<uint16_t, true>(old_bits, steps, k, new_bits);
    case 4: return StepsWidth<uint32_t, true>(old_bits, steps, k, new_bits);
    case 8: return StepsWidth<uint64_t, true>(old_bits, steps, k, new_bits);
  }
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_HOST_INL_H_
