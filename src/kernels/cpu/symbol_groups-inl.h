// Sixteen entries a turn, one a lane. AVX-512 only.
#if defined(DELTAWIRE_KERNELS_CPU_SYMBOL_GROUPS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_SYMBOL_GROUPS_INL_H
#undef DELTAWIRE_KERNELS_CPU_SYMBOL_GROUPS_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_SYMBOL_GROUPS_INL_H
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "kernels/symbol_groups.h"

#undef DELTAWIRE_HAVE_GROUPS
#define DELTAWIRE_HAVE_GROUPS (HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86)

#if DELTAWIRE_HAVE_GROUPS
HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

// codec/bucket.h: 80 buckets a kind of step, at most 19 extra bits.
constexpr int kBuckets = 80;
constexpr uint64_t kMostBits = 19 * kGroupEntries;

// At most 56 bits, the ones above them zero (BitWriter::Batch::Put).
HWY_INLINE void Put(uint64_t value, uint64_t count, BitSink& to) {
  to.pending |= value << to.used;
  std::memcpy(to.out, &to.pending, sizeof(to.pending));
  to.used += static_cast<uint32_t>(count);
  to.out += to.used >> 3;
  to.pending >>= to.used & ~7u;
  to.used &= 7;
}

// Extras of the lanes, of `sizes` bits each, joined by twos, and by fours where these fit one Put.
HWY_INLINE void PutExtras(__m512i extras, __m512i sizes, BitSink& to) {
  const __m512i low = _mm512_set1_epi64(0xFFFFFFFF);
  const __m512i first_size = _mm512_and_si512(sizes, low);
  const __m512i pairs = _mm512_or_si512(_mm512_and_si512(extras, low),
                                        _mm512_sllv_epi64(_mm512_srli_epi64(extras, 32), first_size));
  const __m512i pair_sizes = _mm512_add_epi64(first_size, _mm512_srli_epi64(sizes, 32));
  const __m512i four_sizes = _mm512_add_epi64(pair_sizes, _mm512_bsrli_epi128(pair_sizes, 8));
  alignas(64) uint64_t values[8];
  alignas(64) uint64_t counts[8];
  if (HWY_LIKELY((_mm512_cmpgt_epu64_mask(four_sizes, _mm512_set1_epi64(56)) & 0x55) == 0)) {
    const __m512i fours =
        _mm512_or_si512(pairs, _mm512_sllv_epi64(_mm512_bsrli_epi128(pairs, 8), pair_sizes));
    _mm512_store_si512(values, fours);
    _mm512_store_si512(counts, four_sizes);
    for (int i = 0; i < 8; i += 2) Put(values[i], counts[i], to);
  } else {
    _mm512_store_si512(values, pairs);
    _mm512_store_si512(counts, pair_sizes);
    for (int i = 0; i < 8; ++i) Put(values[i], counts[i], to);
  }
}

// Inclusive.
HWY_INLINE __m512i PrefixSum(__m512i x) {
  const __m512i zero = _mm512_setzero_si512();
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 15));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 14));
  x = _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 12));
  return _mm512_add_epi32(x, _mm512_alignr_epi32(x, zero, 8));
}

HWY_INLINE uint32_t LastLane(__m512i x) {
  const __m128i last = _mm512_extracti32x4_epi32(x, 3);
  return static_cast<uint32_t>(_mm_extract_epi32(last, 3));
}

}  // namespace

uint32_t SplitGroups(const uint32_t* positions, const uint16_t* steps, uint32_t count, uint32_t before,
                     uint8_t* symbols, BitSink* bits, uint16_t* escaped, uint32_t* escaped_count) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i four = _mm512_set1_epi32(4);
  BitSink to = *bits;
  uint32_t escapes = *escaped_count;
  __m512i previous = _mm512_set1_epi32(static_cast<int>(before - 1));
  uint32_t i = 0;
  for (; i + kGroupEntries <= count; i += kGroupEntries) {
    const __m512i position = _mm512_loadu_si512(positions + i);
    const __m512i gap_and_one = _mm512_sub_epi32(position, _mm512_alignr_epi32(position, previous, 15));
    previous = position;
    const __m512i value = _mm512_add_epi32(gap_and_one, _mm512_set1_epi32(3));
    // Bits of the value less three, from the exponent of a float that holds it exactly (it is below 2^22).
    const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(value)), 23);
    const __m512i size = _mm512_sub_epi32(exponent, _mm512_set1_epi32(127 + 2));
    const __m512i top = _mm512_srlv_epi32(value, size);
    const __m512i extra = _mm512_sub_epi32(value, _mm512_sllv_epi32(top, size));
    const __m512i bucket = _mm512_sub_epi32(_mm512_add_epi32(_mm512_slli_epi32(size, 2), top), four);

    const __m512i step =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(steps + i)));
    const __mmask16 up = _mm512_cmpeq_epi32_mask(step, one);
    const __mmask16 down = _mm512_cmpeq_epi32_mask(step, _mm512_set1_epi32(0xFFFF));
    const auto escape = static_cast<__mmask16>(~(up | down));
    __m512i symbol = _mm512_mask_add_epi32(bucket, down, bucket, _mm512_set1_epi32(kBuckets));
    symbol = _mm512_mask_add_epi32(symbol, escape, bucket, _mm512_set1_epi32(2 * kBuckets));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(symbols + i), _mm512_cvtepi32_epi8(symbol));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(escaped + escapes),
                        _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(escape, step)));
    escapes += static_cast<uint32_t>(std::popcount(escape));
    PutExtras(extra, size, to);
  }
  *bits = to;
  *escaped_count = escapes;
  return i;
}

uint32_t JoinGroups(const uint8_t* symbols, uint32_t count, BitSource* bits, uint64_t* next,
                    uint32_t* positions, uint16_t* steps, uint32_t* escape_at, uint32_t* escape_count) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i four = _mm512_set1_epi32(4);
  const __m512i seven = _mm512_set1_epi32(7);
  const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  uint64_t at = bits->position;
  uint64_t position = *next;
  uint32_t escapes = *escape_count;
  uint32_t i = 0;
  // Four bytes from the byte of each extra: the last may begin kMostBits further.
  for (; i + kGroupEntries <= count && at / 8 + kMostBits / 8 + 5 <= bits->size; i += kGroupEntries) {
    const __m512i symbol =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols + i)));
    const __mmask16 not_up = _mm512_cmpge_epu32_mask(symbol, _mm512_set1_epi32(kBuckets));
    const __mmask16 escape = _mm512_cmpge_epu32_mask(symbol, _mm512_set1_epi32(2 * kBuckets));
    __m512i bucket = _mm512_mask_sub_epi32(symbol, not_up, symbol, _mm512_set1_epi32(kBuckets));
    bucket = _mm512_mask_sub_epi32(bucket, escape, bucket, _mm512_set1_epi32(kBuckets));
    const __m512i size = _mm512_srli_epi32(bucket, 2);
    const __m512i top = _mm512_add_epi32(four, _mm512_and_si512(bucket, _mm512_set1_epi32(3)));
    const __m512i base = _mm512_sub_epi32(_mm512_sllv_epi32(top, size), four);

    const __m512i ends = PrefixSum(size);
    const __m512i begins =
        _mm512_add_epi32(_mm512_sub_epi32(ends, size), _mm512_set1_epi32(static_cast<int>(at % 8)));
    const __m512i words = _mm512_i32gather_epi32(_mm512_srli_epi32(begins, 3), bits->bytes + at / 8, 1);
    const __m512i mask = _mm512_sub_epi32(_mm512_sllv_epi32(one, size), one);
    const __m512i extra = _mm512_and_si512(_mm512_srlv_epi32(words, _mm512_and_si512(begins, seven)), mask);
    at += LastLane(ends);

    // A group's gaps add up to less than 2^26; only their sum over the groups needs 64 bits.
    const __m512i after = PrefixSum(_mm512_add_epi32(_mm512_add_epi32(base, extra), one));
    _mm512_storeu_si512(positions + i,
                        _mm512_add_epi32(after, _mm512_set1_epi32(static_cast<int>(position - 1))));
    position += LastLane(after);

    __m512i step = _mm512_mask_mov_epi32(one, not_up, _mm512_set1_epi32(0xFFFF));
    step = _mm512_mask_mov_epi32(step, escape, _mm512_setzero_si512());
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(steps + i), _mm512_cvtepi32_epi16(step));
    _mm512_storeu_si512(
        escape_at + escapes,
        _mm512_maskz_compress_epi32(escape, _mm512_add_epi32(iota, _mm512_set1_epi32(static_cast<int>(i)))));
    escapes += static_cast<uint32_t>(std::popcount(escape));
  }
  bits->position = at;
  *next = position;
  *escape_count = escapes;
  return i;
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // DELTAWIRE_HAVE_GROUPS

#endif  // DELTAWIRE_KERNELS_CPU_SYMBOL_GROUPS_INL_H
