// Change lists: their digest, their ordinal steps.
#if defined(DELTAWIRE_KERNELS_CPU_HOST_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_HOST_INL_H
#undef DELTAWIRE_KERNELS_CPU_HOST_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_HOST_INL_H
#endif

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

constexpr uint64_t kRowBytes = 8 * kDigestRowWords;
constexpr uint32_t kBatch = 64;

// Changes come in ascending order, a few to a row of the digest. A loop per row would mispredict its end at
// every row, which costs more than the arithmetic; so a batch computes the right factors of all its rows.
template <typename T>
struct ChangeDigest {
  uint64_t key, canonical;
  const uint32_t* pos;
  const T* before;
  const T* after;

  HWY_INLINE uint64_t Byte(uint64_t i) const { return canonical + uint64_t{pos[i]} * sizeof(T); }
  HWY_INLINE uint64_t Row(uint64_t i) const { return Byte(i) / kRowBytes; }

  // One change, from left factor times word to the lanes.
  HWY_INLINE void Add(uint64_t i, uint64_t right0, uint64_t right1, uint64_t lanes[2]) const {
    const uint64_t byte = Byte(i), word = byte / 8 % kDigestRowWords;
    const uint64_t was = DigestWord(LoadAs<T>(before + i), byte), is = DigestWord(LoadAs<T>(after + i), byte);
    lanes[0] += kDigestLeft.lane[0][word] * right0 * (is - was);
    lanes[1] += kDigestLeft.lane[1][word] * right1 * (__builtin_bswap64(is) - __builtin_bswap64(was));
  }
  HWY_INLINE void AddAlone(uint64_t i, uint64_t lanes[2]) const {
    const uint64_t row = Row(i);
    Add(i, DigestRight(key, row, 0), DigestRight(key, row, 1), lanes);
  }

  // kBatch changes from i. False, with nothing added, if they are not in order or have too many rows.
  HWY_INLINE bool AddBatch(uint64_t i, uint64_t lanes[2]) const {
    const uint64_t first = Row(i), rows = Row(i + kBatch - 1) - first + 1;
    if (rows - 1 >= kBatch) return false;  // descending positions wrap around
    uint64_t right0[kBatch], right1[kBatch];
    for (uint64_t row = 0; row < rows; ++row) {
      right0[row] = DigestRight(key, first + row, 0);
      right1[row] = DigestRight(key, first + row, 1);
    }
    uint64_t sums[2] = {0, 0};
    bool outside = false;
    for (uint64_t j = i; j < i + kBatch; ++j) {
      uint64_t row = Row(j) - first;
      outside |= row >= rows;
      row = row < rows ? row : 0;
      Add(j, right0[row], right1[row], sums);
    }
    if (outside) return false;
    lanes[0] += sums[0];
    lanes[1] += sums[1];
    return true;
  }
};

template <typename T>
void DigestChangesWidth(uint64_t key, uint64_t canonical, const uint32_t* pos, uint32_t k,
                        const void* old_bits, const void* new_bits, uint64_t lanes[2]) {
  const ChangeDigest<T> changes{key, canonical, pos, static_cast<const T*>(old_bits),
                                static_cast<const T*>(new_bits)};
  uint64_t i = 0;
  while (i + kBatch <= k) {
    if (!changes.AddBatch(i, lanes)) {
      for (uint64_t j = i; j < i + kBatch; ++j) changes.AddAlone(j, lanes);
    }
    i += kBatch;
  }
  for (; i < k; ++i) changes.AddAlone(i, lanes);
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
    const auto result =
        kApply ? OrdinalLanes(d, hn::Add(ordinal, other)) : hn::Sub(OrdinalLanes(d, other), ordinal);
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

#endif  // DELTAWIRE_KERNELS_CPU_HOST_INL_H
