// The state digest of a run of served bytes. The digest is linear in bytes, so widths don't matter here.
#if defined(DELTAWIRE_KERNELS_CPU_DIGEST_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_DIGEST_INL_H
#undef DELTAWIRE_KERNELS_CPU_DIGEST_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_DIGEST_INL_H
#endif

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

// How far ahead lines are on their way to the second-level cache: 1.2 times as fast as without. An address,
// not a word: it may lie behind the run.
constexpr uint64_t kDigestAhead = 4096;

// Sums of left factor times word over `count` words of one row, whose first is word i of the row.
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
template <class V>
struct LaneSum {
#if HWY_TARGET <= HWY_AVX3
  V sum;
#else
  V low, cross;  // products of low halves; of low and high halves, which count modulo 2^32
#endif
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE LaneSum<V> ZeroSum(D d) {
#if HWY_TARGET <= HWY_AVX3
  return {hn::Zero(d)};
#else
  return {hn::Zero(d), hn::Zero(d)};
#endif
}

template <class D, class V>
HWY_INLINE void MultiplyAdd(D d, const uint64_t* left, V words, LaneSum<V>& into) {
  const V factors = hn::LoadU(d, left);
#if HWY_TARGET <= HWY_AVX3
  into.sum = hn::Add(into.sum, V{_mm512_mullo_epi64(factors.raw, words.raw)});
#else
  const hn::Repartition<uint32_t, D> d32;
  const auto f = hn::BitCast(d32, factors), w = hn::BitCast(d32, words);
  into.low = hn::Add(into.low, hn::MulEven(f, w));
  into.cross = hn::BitCast(d, hn::Add(hn::BitCast(d32, into.cross), hn::Mul(hn::Shuffle2301(f), w)));
#endif
}

template <class D, class V>
HWY_INLINE uint64_t Total(D d, const LaneSum<V>& a, const LaneSum<V>& b) {
#if HWY_TARGET <= HWY_AVX3
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(a.sum, b.sum)));
#else
  const hn::Repartition<uint32_t, D> d32;
  const V cross = hn::BitCast(d, hn::Add(hn::BitCast(d32, a.cross), hn::BitCast(d32, b.cross)));
  const V both = hn::ShiftLeft<32>(hn::Add(cross, hn::ShiftRight<32>(cross)));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a.low, b.low), both)));
#endif
}
#endif

HWY_INLINE void DigestRow(const uint8_t* p, uint32_t i, uint32_t count, uint64_t sums[2]) {
  const uint64_t* left0 = kDigestLeft.lane[0].data() + i;
  const uint64_t* left1 = kDigestLeft.lane[1].data() + i;
  uint32_t j = 0;
  sums[0] = sums[1] = 0;
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint8_t, decltype(d)> d8;
  constexpr uint32_t kLanes = HWY_LANES(uint64_t);
  HWY_ALIGN static constexpr uint8_t kReverse[16] = {7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8};
  const auto reverse = hn::LoadDup128(d8, kReverse);
  auto a0 = ZeroSum(d), a1 = ZeroSum(d), b0 = ZeroSum(d), b1 = ZeroSum(d);
  for (; j + 2 * kLanes <= count; j += 2 * kLanes) {
    for (uint32_t line = 0; line < 2 * kLanes; line += 8) {
      __builtin_prefetch(p + 8 * (j + line) + kDigestAhead, 0, 2);
    }
    const auto first = LoadBytes(d8, p + 8 * j);
    const auto second = LoadBytes(d8, p + 8 * (j + kLanes));
    MultiplyAdd(d, left0 + j, hn::BitCast(d, first), a0);
    MultiplyAdd(d, left1 + j, hn::BitCast(d, hn::TableLookupBytes(first, reverse)), a1);
    MultiplyAdd(d, left0 + j + kLanes, hn::BitCast(d, second), b0);
    MultiplyAdd(d, left1 + j + kLanes, hn::BitCast(d, hn::TableLookupBytes(second, reverse)), b1);
  }
  sums[0] = Total(d, a0, b0);
  sums[1] = Total(d, a1, b1);
#endif
  for (; j < count; ++j) {
    const uint64_t word = LoadAs<uint64_t>(p + 8 * j);
    sums[0] += left0[j] * word;
    sums[1] += left1[j] * __builtin_bswap64(word);
  }
}

// lanes += digest of `bytes` served bytes that stand at byte `canonical` of the tensor.
HWY_INLINE void DigestBytes(const uint8_t* p, uint64_t bytes, uint64_t canonical, uint64_t key,
                            uint64_t lanes[2]) {
  const uint64_t phase = canonical % 8;
  if (phase != 0 && bytes != 0) {
    const uint64_t head = bytes < 8 - phase ? bytes : 8 - phase;
    DigestElement(key, canonical, LoadBits(p, static_cast<uint32_t>(head)), lanes);
    p += head;
    bytes -= head;
    canonical += head;
  }
  uint64_t word = canonical / 8;
  const uint64_t end = word + bytes / 8;
  while (word < end) {
    const auto i = static_cast<uint32_t>(word % kDigestRowWords);
    const uint64_t count = end - word < kDigestRowWords - i ? end - word : kDigestRowWords - i;
    uint64_t sums[2];
    DigestRow(p, i, static_cast<uint32_t>(count), sums);
    for (int lane = 0; lane < 2; ++lane) {
      lanes[lane] += DigestRight(key, word / kDigestRowWords, lane) * sums[lane];
    }
    p += 8 * count;
    word += count;
  }
  if (bytes % 8 != 0) DigestElement(key, end * 8, LoadBits(p, bytes % 8), lanes);
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_DIGEST_INL_H
