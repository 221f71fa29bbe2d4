// Ranks within classes and back, in batches of 2048 elements: the bits of the elements' classes, a bit mask
// of each class in use, prefix sums over its words, and then a few instructions a listed element in one loop
// for all classes, so that no branch depends on a single element.
#if defined(DELTAWIRE_KERNELS_CPU_CLASS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_CLASS_INL_H
#undef DELTAWIRE_KERNELS_CPU_CLASS_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_CLASS_INL_H
#endif

#include "kernels/class_walk.h"
#include "kernels/cpu/lanes-inl.h"

// Byte permutes, compressing and counting of bits: Ice Lake, Zen 4 and later.
#undef DELTAWIRE_HAVE_VBMI2
#define DELTAWIRE_HAVE_VBMI2 (HWY_TARGET <= HWY_AVX3_DL && HWY_ARCH_X86)

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

constexpr uint32_t kWord = 64;
constexpr uint32_t kWords = kChunk / kWord;
// Entries of a list that are compared at once.
constexpr uint32_t kAtOnce = 16;

// What finds the listed elements of one class in a batch.
struct ClassWords {
  HWY_ALIGN uint64_t mask[kWords];
  // Elements of the class up to the word: without it, and with it.
  HWY_ALIGN uint16_t before[kWords];
  HWY_ALIGN uint16_t through[kWords];
};

constexpr uint32_t kPlanes = 4;

// The classes of a batch's elements, bit by bit, and how many elements each class has.
struct ClassBatch {
  HWY_ALIGN uint64_t plane[kPlanes][kWords] = {};  // bit 0 of the classes, bit 1, ...
  HWY_ALIGN uint64_t there[kWords];                // all elements
  HWY_ALIGN uint32_t total[kMaxClasses] = {};

  ClassBatch() { std::memset(there, 0xFF, sizeof(there)); }
};

#if DELTAWIRE_HAVE_VBMI2

struct ByteIndex {
  alignas(64) uint8_t at[kWord];
};
constexpr ByteIndex MakeByteIndex(uint32_t first, uint32_t stride) {
  ByteIndex index{};
  for (uint32_t i = 0; i < kWord; ++i) index.at[i] = static_cast<uint8_t>(first + stride * i);
  return index;
}
constexpr ByteIndex kIota = MakeByteIndex(0, 1), kOdd = MakeByteIndex(1, 2);

// Keys of 64 elements, one a byte.
template <typename T>
HWY_INLINE __m512i KeysOf(const uint8_t* p) {
  const __m512i a = _mm512_loadu_si512(p);
  if constexpr (sizeof(T) == 1) {
    return _mm512_add_epi8(a, a);
  } else if constexpr (sizeof(T) == 2) {
    const __m512i b = _mm512_loadu_si512(p + 64);
    return _mm512_permutex2var_epi8(_mm512_add_epi16(a, a), _mm512_load_si512(kOdd.at),
                                    _mm512_add_epi16(b, b));
  } else {
    constexpr uint32_t kParts = sizeof(T);
    constexpr uint32_t kKeys = kWord / kParts;
    alignas(64) uint8_t keys[kWord];
    for (uint32_t part = 0; part < kParts; ++part) {
      const __m512i bits = _mm512_loadu_si512(p + 64 * part);
      if constexpr (sizeof(T) == 4) {
        _mm_store_si128(reinterpret_cast<__m128i*>(keys + kKeys * part),
                        _mm512_cvtepi32_epi8(_mm512_srli_epi32(bits, 23)));
      } else {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(keys + kKeys * part),
                         _mm512_cvtepi64_epi8(_mm512_srli_epi64(bits, 55)));
      }
    }
    return _mm512_load_si512(keys);
  }
}

// kHigh: keys above 127 are not all of one class.
template <typename T, uint32_t kUsed, bool kHigh>
HWY_INLINE void FillPlanes(const uint8_t* p, uint32_t words, const ClassCuts& cuts, ClassBatch& batch) {
  // The class of each key, in the highest bits of a byte.
  __m512i class_of[kHigh ? 4 : 2];
  for (int part = 0; part < (kHigh ? 4 : 2); ++part) {
    const __m512i keys =
        _mm512_add_epi8(_mm512_load_si512(kIota.at), _mm512_set1_epi8(static_cast<char>(64 * part)));
    class_of[part] = _mm512_setzero_si512();
    for (uint32_t c = 1; c < cuts.classes; ++c) {
      const __m512i cut = _mm512_set1_epi8(static_cast<char>(cuts.cut[c - 1]));
      const __mmask64 reached = _mm512_cmpge_epu8_mask(keys, cut);
      class_of[part] = _mm512_mask_add_epi8(class_of[part], reached, class_of[part],
                                            _mm512_set1_epi8(static_cast<char>(1 << (8 - kUsed))));
    }
  }
  for (uint32_t w = 0; w < words; ++w) {
    const uint8_t* at = p + uint64_t{w} * kWord * sizeof(T);
    // Some batches ahead, and into the second-level cache: the first level has too few buffers for lines on
    // their way to keep memory busy (measured: half as fast). An address, not an element: it may lie behind
    // the run.
    const auto ahead = reinterpret_cast<uintptr_t>(at) + 8 * kChunk * sizeof(T);
    for (uint32_t line = 0; line < sizeof(T); ++line) {
      __builtin_prefetch(reinterpret_cast<const void*>(ahead + kWord * line), 0, 2);
    }
    const __m512i keys = KeysOf<T>(at);
    __m512i classes;
    if constexpr (kHigh) {
      classes = _mm512_mask_mov_epi8(_mm512_permutex2var_epi8(class_of[0], keys, class_of[1]),
                                     _mm512_movepi8_mask(keys),
                                     _mm512_permutex2var_epi8(class_of[2], keys, class_of[3]));
    } else {
      const __m512i low = _mm512_min_epu8(keys, _mm512_set1_epi8(127));
      classes = _mm512_permutex2var_epi8(class_of[0], low, class_of[1]);
    }
    for (uint32_t bit = kUsed; bit-- > 0;) {
      batch.plane[bit][w] = _mm512_movepi8_mask(classes);
      classes = _mm512_add_epi8(classes, classes);
    }
  }
}

template <typename T, uint32_t kUsed>
HWY_INLINE void FillUsedPlanes(const uint8_t* p, uint32_t words, const ClassCuts& cuts, ClassBatch& batch) {
  const bool high = cuts.classes > 1 && cuts.cut[cuts.classes - 2] > 127;
  return high ? FillPlanes<T, kUsed, true>(p, words, cuts, batch)
              : FillPlanes<T, kUsed, false>(p, words, cuts, batch);
}

template <typename T>
HWY_INLINE void MakePlanes(const uint8_t* p, uint32_t words, const ClassCuts& cuts, ClassBatch& batch) {
  if (cuts.classes <= 4) return FillUsedPlanes<T, 2>(p, words, cuts, batch);
  if (cuts.classes <= 8) return FillUsedPlanes<T, 3>(p, words, cuts, batch);
  return FillUsedPlanes<T, 4>(p, words, cuts, batch);
}

// How many elements have all bits of kBits in their class, in eight lanes.
template <uint32_t kBits>
HWY_INLINE __m512i CountOf(const ClassBatch& batch) {
  __m512i sum = _mm512_setzero_si512();
  for (uint32_t w = 0; w < kWords; w += 8) {
    __m512i all = _mm512_set1_epi64(-1);
    for (uint32_t bit = 0; bit < kPlanes; ++bit) {
      if ((kBits >> bit & 1) != 0) all = _mm512_and_si512(all, _mm512_load_si512(batch.plane[bit] + w));
    }
    sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(all));
  }
  return sum;
}

// CountOf<kBits ... kBits + 7> in the lower half. Eight sums of eight lanes at once: two a vector, then four,
// then eight. Where kBits is 0, lane 0 is not used.
template <uint32_t kBits>
HWY_INLINE __m512i CountEight(const ClassBatch& batch) {
  const auto two = [](__m512i a, __m512i b) { return _mm512_or_si512(a, _mm512_slli_epi64(b, 32)); };
  const auto four = [](__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  };
  const __m512i zero = _mm512_setzero_si512();
  const __m512i low = four(two(kBits == 0 ? zero : CountOf<kBits>(batch), CountOf<kBits + 1>(batch)),
                           two(CountOf<kBits + 2>(batch), CountOf<kBits + 3>(batch)));
  const __m512i high = four(two(CountOf<kBits + 4>(batch), CountOf<kBits + 5>(batch)),
                            two(CountOf<kBits + 6>(batch), CountOf<kBits + 7>(batch)));
  const __m512i half =
      _mm512_add_epi32(_mm512_shuffle_i64x2(low, high, 0x44), _mm512_shuffle_i64x2(low, high, 0xEE));
  const __m512i all = _mm512_add_epi32(half, _mm512_shuffle_i64x2(half, half, 0xB1));
  return _mm512_shuffle_i64x2(all, all, 0x08);
}

HWY_INLINE void CountClasses(uint32_t classes, uint32_t count, ClassBatch& batch) {
  __m512i sums = _mm512_maskz_mov_epi32(0xFF, CountEight<0>(batch));
  if (classes > 8) sums = _mm512_inserti64x4(sums, _mm512_castsi512_si256(CountEight<8>(batch)), 1);
  sums = _mm512_mask_mov_epi32(sums, 1, _mm512_set1_epi32(static_cast<int>(count)));
  // From "at least these bits" to "these bits", a bit at a time.
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const auto subtract = [&](int bit, __mmask16 without) {
    const __m512i with = _mm512_or_si512(lanes, _mm512_set1_epi32(bit));
    sums = _mm512_mask_sub_epi32(sums, without, sums, _mm512_permutexvar_epi32(with, sums));
  };
  subtract(1, 0x5555);
  subtract(2, 0x3333);
  subtract(4, 0x0F0F);
  subtract(8, 0x00FF);
  _mm512_store_si512(batch.total, sums);
}

HWY_INLINE void SumWords(const ClassBatch& batch, uint32_t c, ClassWords& out) {
  __m512i other[kPlanes];  // all ones where the class lacks the bit
  for (uint32_t bit = 0; bit < kPlanes; ++bit) {
    other[bit] = _mm512_set1_epi64(static_cast<int64_t>(c >> bit & 1) - 1);
  }
  const auto counts_of = [&](uint32_t w) {
    __m512i mask = _mm512_load_si512(batch.there + w);
    for (uint32_t bit = 0; bit < kPlanes; ++bit) {
      // mask & (plane ^ other)
      mask = _mm512_ternarylogic_epi64(mask, _mm512_load_si512(batch.plane[bit] + w), other[bit], 0x60);
    }
    _mm512_store_si512(out.mask + w, mask);
    return _mm512_cvtepi64_epi16(_mm512_popcnt_epi64(mask));
  };
  __m512i counts = _mm512_castsi128_si512(counts_of(0));
  counts = _mm512_inserti32x4(counts, counts_of(8), 1);
  counts = _mm512_inserti32x4(counts, counts_of(16), 2);
  counts = _mm512_inserti32x4(counts, counts_of(24), 3);
  __m512i sum = _mm512_add_epi16(counts, _mm512_bslli_epi128(counts, 2));
  sum = _mm512_add_epi16(sum, _mm512_bslli_epi128(sum, 4));
  sum = _mm512_add_epi16(sum, _mm512_bslli_epi128(sum, 8));
  // Each 128-bit part now adds up by itself; the parts before it are added in two steps.
  const __m512i last = _mm512_set_epi16(23, 23, 23, 23, 23, 23, 23, 23, 15, 15, 15, 15, 15, 15, 15, 15, 7, 7,
                                        7, 7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i last_but_one = _mm512_set_epi16(15, 15, 15, 15, 15, 15, 15, 15, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0,
                                                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  sum = _mm512_add_epi16(sum, _mm512_maskz_permutexvar_epi16(0xFFFFFF00u, last, sum));
  sum = _mm512_add_epi16(sum, _mm512_maskz_permutexvar_epi16(0xFFFF0000u, last_but_one, sum));
  _mm512_store_si512(out.through, sum);
  _mm512_store_si512(out.before, _mm512_sub_epi16(sum, counts));
}

// seen += the batch's elements of each class; a bit for each class whose next listed rank is then behind it.
HWY_INLINE uint32_t Advance(const ClassBatch& batch, const uint32_t* next, uint32_t* seen) {
  const __m512i end = _mm512_add_epi32(_mm512_load_si512(seen), _mm512_load_si512(batch.total));
  _mm512_store_si512(seen, end);
  return _mm512_cmplt_epu32_mask(_mm512_load_si512(next), end);
}

// How many of at most 16 ascending numbers are below `end`.
HWY_INLINE uint32_t CountBelow(const uint32_t* numbers, uint32_t count, uint32_t end) {
  const auto there = static_cast<__mmask16>((1u << count) - 1);
  const __m512i some = _mm512_maskz_loadu_epi32(there, numbers);
  const __m512i ends = _mm512_set1_epi32(static_cast<int>(end));
  return static_cast<uint32_t>(std::popcount(uint32_t{_mm512_mask_cmplt_epu32_mask(there, some, ends)}));
}

// Words that end at or before the element of this rank.
HWY_INLINE uint32_t WordOfRank(const uint16_t* through, uint32_t rank) {
  const __m512i ranks = _mm512_set1_epi16(static_cast<int16_t>(rank));
  return static_cast<uint32_t>(std::popcount(_mm512_cmple_epu16_mask(_mm512_load_si512(through), ranks)));
}

// The listed ones of 64 elements, one after the other. Writes up to 64 entries beyond what counts. index: the
// listed elements' numbers, one a byte.
template <typename T>
HWY_INLINE void Pack(uint64_t listed, uint32_t count, __m512i index, const void* from, T* out) {
  if constexpr (sizeof(T) == 1) {
    _mm512_storeu_si512(out, _mm512_permutexvar_epi8(index, _mm512_loadu_si512(from)));
  } else if constexpr (sizeof(T) == 2) {
    const auto* p = static_cast<const uint8_t*>(from);
    const __m512i low = _mm512_loadu_si512(p);
    const __m512i high = _mm512_loadu_si512(p + 64);
    const __m512i first = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(index));
    _mm512_storeu_si512(out, _mm512_permutex2var_epi16(low, first, high));
    if (count > 32) {
      const __m512i second = _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(index, 1));
      _mm512_storeu_si512(out + 32, _mm512_permutex2var_epi16(low, second, high));
    }
  } else {
    constexpr uint32_t kStep = kWord / sizeof(T);
    for (uint32_t part = 0; part < sizeof(T); ++part) {
      const __m512i values = _mm512_loadu_si512(static_cast<const uint8_t*>(from) + 64 * part);
      const uint64_t some = listed >> (kStep * part) & ((uint64_t{1} << kStep) - 1);
      _mm512_storeu_si512(out, sizeof(T) == 4
                                   ? _mm512_maskz_compress_epi32(static_cast<__mmask16>(some), values)
                                   : _mm512_maskz_compress_epi64(static_cast<__mmask8>(some), values));
      out += std::popcount(some);
    }
  }
}

template <typename T>
HWY_INLINE uint32_t Emit(uint64_t listed, uint32_t first, const T* steps, const uint8_t* base, uint32_t* pos,
                         T* out_steps, T* out_base) {
  const auto count = static_cast<uint32_t>(std::popcount(listed));
  const __m512i index = _mm512_maskz_compress_epi8(listed, _mm512_load_si512(kIota.at));
  if constexpr (sizeof(T) == 2) {
    // Nearly always; narrow stores, because each overlaps the one before and few are aligned.
    if (HWY_LIKELY(count <= 8)) {
      const __m128i some = _mm512_castsi512_si128(index);
      const __m512i lanes = _mm512_castsi128_si512(_mm_cvtepu8_epi16(some));
      const auto pack = [&](const void* from, T* to) {
        const auto* p = static_cast<const uint8_t*>(from);
        const __m512i packed =
            _mm512_permutex2var_epi16(_mm512_loadu_si512(p), lanes, _mm512_loadu_si512(p + 64));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(packed));
      };
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(pos),
          _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), _mm256_cvtepu8_epi32(some)));
      pack(steps, out_steps);
      pack(base, out_base);
      return count;
    }
  }
  const __m512i offset = _mm512_set1_epi32(static_cast<int>(first));
  const auto put = [&](uint32_t at, __m128i some) {
    _mm512_storeu_si512(pos + at, _mm512_add_epi32(offset, _mm512_cvtepu8_epi32(some)));
  };
  put(0, _mm512_castsi512_si128(index));
  if (count > 16) {
    put(16, _mm512_extracti32x4_epi32(index, 1));
    if (count > 32) {
      put(32, _mm512_extracti32x4_epi32(index, 2));
      put(48, _mm512_extracti32x4_epi32(index, 3));
    }
  }
  Pack(listed, count, index, steps, out_steps);
  Pack(listed, count, index, base, out_base);
  return count;
}

#else

template <typename T>
HWY_INLINE void MakePlanes(const uint8_t* p, uint32_t words, const ClassCuts& cuts, ClassBatch& batch) {
  const hn::CappedTag<uint8_t, kWord> d;
  for (uint32_t w = 0; w < words; ++w) {
    const uint8_t* at = p + uint64_t{w} * kWord * sizeof(T);
    HWY_ALIGN uint8_t keys[kWord];
    for (uint32_t i = 0; i < kWord; ++i) {
      keys[i] = static_cast<uint8_t>(uint64_t{LoadAs<T>(at + i * sizeof(T))} << 1 >> (8 * sizeof(T) - 8));
    }
    uint64_t planes[kPlanes] = {};
    for (uint32_t c = 1; c < cuts.classes; ++c) {
      const auto cut = hn::Set(d, cuts.cut[c - 1]);
      uint64_t reached = 0;
      for (uint32_t i = 0; i < kWord; i += hn::Lanes(d)) {
        uint8_t bits[8] = {};
        // No comparison of unsigned bytes everywhere: the larger of the two is the key where it reaches the
        // cut.
        const auto key = hn::Load(d, keys + i);
        hn::StoreMaskBits(d, hn::Eq(hn::Max(key, cut), key), bits);
        reached |= LoadAs<uint64_t>(bits) << i;
      }
      // From class c - 1 to c, which flips the bits in which the two differ.
      for (uint32_t bit = 0; bit < kPlanes; ++bit) {
        if (((c ^ (c - 1)) >> bit & 1) != 0) planes[bit] ^= reached;
      }
    }
    for (uint32_t bit = 0; bit < kPlanes; ++bit) batch.plane[bit][w] = planes[bit];
  }
}

HWY_INLINE uint64_t ClassMask(const ClassBatch& batch, uint32_t c, uint32_t w) {
  uint64_t mask = batch.there[w];
  for (uint32_t bit = 0; bit < kPlanes; ++bit) {
    mask &= (c >> bit & 1) != 0 ? batch.plane[bit][w] : ~batch.plane[bit][w];
  }
  return mask;
}

HWY_INLINE void CountClasses(uint32_t classes, uint32_t count, ClassBatch& batch) {
  batch.total[0] = count;
  for (uint32_t c = 1; c < classes; ++c) {
    uint32_t sum = 0;
    for (uint32_t w = 0; w < kWords; ++w) sum += static_cast<uint32_t>(std::popcount(ClassMask(batch, c, w)));
    batch.total[c] = sum;
    batch.total[0] -= sum;
  }
}

HWY_INLINE void SumWords(const ClassBatch& batch, uint32_t c, ClassWords& out) {
  uint32_t sum = 0;
  for (uint32_t w = 0; w < kWords; ++w) {
    out.mask[w] = ClassMask(batch, c, w);
    out.before[w] = static_cast<uint16_t>(sum);
    sum += static_cast<uint32_t>(std::popcount(out.mask[w]));
    out.through[w] = static_cast<uint16_t>(sum);
  }
}

HWY_INLINE uint32_t Advance(const ClassBatch& batch, const uint32_t* next, uint32_t* seen) {
  uint32_t active = 0;
  for (uint32_t c = 0; c < kMaxClasses; ++c) {
    seen[c] += batch.total[c];
    active |= uint32_t{next[c] < seen[c]} << c;
  }
  return active;
}

HWY_INLINE uint32_t CountBelow(const uint32_t* numbers, uint32_t count, uint32_t end) {
  uint32_t below = 0;
  while (below < count && numbers[below] < end) ++below;
  return below;
}

HWY_INLINE uint32_t WordOfRank(const uint16_t* through, uint32_t rank) {
  uint32_t word = 0;
  for (uint32_t w = 0; w < kWords; ++w) word += through[w] <= rank;
  return word;
}

template <typename T>
HWY_INLINE uint32_t Emit(uint64_t listed, uint32_t first, const T* steps, const uint8_t* base, uint32_t* pos,
                         T* out_steps, T* out_base) {
  uint32_t count = 0;
  for (; listed != 0; listed &= listed - 1) {
    const auto i = static_cast<uint32_t>(std::countr_zero(listed));
    pos[count] = first + i;
    StoreAs<T>(out_base + count, LoadAs<T>(base + i * sizeof(T)));
    StoreAs<T>(out_steps + count++, steps[i]);
  }
  return count;
}

#endif

// The set bit with `rank` set bits below it; there is one.
HWY_INLINE uint64_t SelectBit(uint64_t bits, uint32_t rank) {
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  return _pdep_u64(uint64_t{1} << rank, bits);
#else
  for (; rank > 0; --rank) bits &= bits - 1;
  return bits & (0 - bits);
#endif
}

// The last elements of a run, where they are not a whole word.
template <typename T>
struct Tail {
  uint8_t bits[kWord * sizeof(T)];
};

// Planes and totals for count <= kChunk elements.
template <typename T>
HWY_INLINE void FillBatch(const uint8_t* p, uint32_t count, const ClassCuts& cuts, ClassBatch& batch,
                          Tail<T>& tail) {
  MakePlanes<T>(p, count / kWord, cuts, batch);
  if (count < kChunk) {
    uint32_t w = count / kWord;
    if (count % kWord != 0) {
      std::memset(tail.bits, 0, sizeof(tail.bits));
      std::memcpy(tail.bits, p + uint64_t{w} * sizeof(tail.bits), count % kWord * sizeof(T));
      ClassBatch last;
      MakePlanes<T>(tail.bits, 1, cuts, last);
      // Where there is no element the key is 0, which is class 0: no bit.
      for (uint32_t bit = 0; bit < kPlanes; ++bit) batch.plane[bit][w] = last.plane[bit][0];
      batch.there[w] = (uint64_t{1} << count % kWord) - 1;
      ++w;
    }
    std::memset(batch.there + w, 0, (kWords - w) * sizeof(uint64_t));
    for (uint64_t* plane : batch.plane) std::memset(plane + w, 0, (kWords - w) * sizeof(uint64_t));
  }
  CountClasses(cuts.classes, count, batch);
}

template <typename T>
void RankWidth(const uint8_t* p, uint32_t n, uint32_t first, const ClassCuts& cuts, const uint32_t* pos,
               const void* old_bits, const void* steps, uint32_t k, RankList* lists) {
  ClassBatch batch;
  ClassWords words[kMaxClasses];
  Tail<T> tail;
  uint8_t class_of[256];
  uint32_t c = 0;
  for (uint32_t key = 0; key < 256; ++key) {
    if (c + 1 < cuts.classes && cuts.cut[c] <= key) ++c;
    class_of[key] = static_cast<uint8_t>(c);
  }
  const auto class_at = [&](const void* bits, uint64_t i) -> uint32_t {
    const T value = LoadAs<T>(static_cast<const T*>(bits) + i);
    return class_of[static_cast<uint8_t>(uint64_t{value} << 1 >> (8 * sizeof(T) - 8))];
  };
  HWY_ALIGN uint32_t seen[kMaxClasses] = {};
  HWY_ALIGN uint32_t never[kMaxClasses] = {};
  uint32_t count_of[kMaxClasses];
  for (uint32_t each = 0; each < cuts.classes; ++each) {
    seen[each] = lists[each].seen;
    count_of[each] = lists[each].count;
  }
  uint8_t classes[kChunk];
  uint32_t i = 0;
  for (uint32_t begin = 0; begin < n; begin += kChunk) {
    const uint32_t count = n - begin < kChunk ? n - begin : kChunk;
    const uint8_t* from = p + uint64_t{begin} * sizeof(T);
    FillBatch<T>(from, count, cuts, batch, tail);
    const uint32_t start = first + begin;
    uint32_t listed = 0;
    uint32_t used = 0;
    for (; i + listed < k && pos[i + listed] - start < count; ++listed) {
      const uint32_t at = pos[i + listed] - start;
      const uint32_t was = class_at(old_bits, i + listed);
      const uint32_t is = class_at(from, at);
      classes[listed] = static_cast<uint8_t>(was);
      used |= 1u << was;
      if (was == is) continue;
      // The element goes back to the class that it has in the base.
      for (uint32_t bit = 0; bit < kPlanes; ++bit) {
        batch.plane[bit][at / kWord] ^= uint64_t{(was ^ is) >> bit & 1} << at % kWord;
      }
      ++batch.total[was];
      --batch.total[is];
    }
    for (; used != 0; used &= used - 1) {
      const auto mine = static_cast<uint32_t>(std::countr_zero(used));
      SumWords(batch, mine, words[mine]);
    }
    for (uint32_t j = 0; j < listed; ++j, ++i) {
      const uint32_t at = pos[i] - start;
      const uint32_t mine = classes[j];
      const uint64_t below = words[mine].mask[at / kWord] & ((uint64_t{1} << at % kWord) - 1);
      const uint32_t to = count_of[mine]++;
      lists[mine].ranks[to] =
          seen[mine] + words[mine].before[at / kWord] + static_cast<uint32_t>(std::popcount(below));
      StoreAs<T>(static_cast<T*>(lists[mine].steps) + to, LoadAs<T>(static_cast<const T*>(steps) + i));
    }
    Advance(batch, never, seen);
  }
  for (uint32_t each = 0; each < cuts.classes; ++each) {
    lists[each].seen = seen[each];
    lists[each].count = count_of[each];
  }
}

// The listed elements of a batch, by word.
template <typename T>
struct Placed {
  HWY_ALIGN uint64_t listed[kWords];
  HWY_ALIGN T step_at[kChunk];
  uint32_t touched = 0;  // words with listed elements
  uint32_t first = 0;    // position of the batch
  const uint8_t* from = nullptr;
};

template <typename T>
uint32_t PlaceWidth(const uint8_t* p, uint32_t n, uint32_t first, const ClassCuts& cuts, ClassList* lists,
                    uint32_t* pos, T* steps, T* base_bits) {
  ClassBatch batch;
  ClassWords words[kMaxClasses];
  Tail<T> tail;
  Placed<T> placed[2];
  // The batch's listed elements, class after class: entry j, of class c, is entry j + shift of c's list.
  struct Entries {
    const uint32_t* ranks;
    const T* steps;
    uint32_t shift;
    uint32_t start;  // rank of the class's first element in the batch
  };
  Entries entries[kMaxClasses];
  uint8_t class_of[kChunk + kAtOnce];
  HWY_ALIGN uint32_t seen[kMaxClasses] = {};
  HWY_ALIGN uint32_t next[kMaxClasses];
  const auto next_of = [](const ClassList& list) {
    return list.taken < list.count ? list.ranks[list.taken] : ~uint32_t{0};
  };
  std::memset(next, 0xFF, sizeof(next));
  for (uint32_t c = 0; c < cuts.classes; ++c) {
    seen[c] = lists[c].seen;
    next[c] = next_of(lists[c]);
  }
  uint32_t found = 0;
  const auto emit = [&](const Placed<T>& from, uint32_t count) {
    for (uint32_t left = from.touched; left != 0; left &= left - 1) {
      const auto word = static_cast<uint32_t>(std::countr_zero(left));
      const bool whole = kWord * (word + 1) <= count;
      found += Emit(from.listed[word], from.first + kWord * word, from.step_at + kWord * word,
                    whole ? from.from + uint64_t{kWord} * word * sizeof(T) : tail.bits, pos + found,
                    steps + found, base_bits + found);
    }
  };
  for (uint32_t begin = 0; begin < n; begin += kChunk) {
    const uint32_t count = n - begin < kChunk ? n - begin : kChunk;
    Placed<T>& here = placed[begin / kChunk % 2];
    here.first = first + begin;
    here.from = p + uint64_t{begin} * sizeof(T);
    FillBatch<T>(here.from, count, cuts, batch, tail);
    // A batch is emitted when the next one's rows are there: its words are known for long then, so that a
    // mispredicted end of the loop costs little.
    if (begin > 0) emit(placed[begin / kChunk % 2 ^ 1], kChunk);
    std::memset(here.listed, 0, sizeof(here.listed));
    // First how many there are of each class, then one loop over all of them: a loop for each class would end
    // unpredictably once a class.
    uint32_t listed = 0;
    for (uint32_t active = Advance(batch, next, seen); active != 0; active &= active - 1) {
      const auto c = static_cast<uint32_t>(std::countr_zero(active));
      ClassList& list = lists[c];
      SumWords(batch, c, words[c]);
      entries[c] = {list.ranks, static_cast<const T*>(list.steps), list.taken - listed,
                    seen[c] - batch.total[c]};
      uint32_t some = kAtOnce;
      while (some == kAtOnce) {
        const uint32_t left = list.count - list.taken;
        some = CountBelow(list.ranks + list.taken, left < kAtOnce ? left : kAtOnce, seen[c]);
        std::memset(class_of + listed, static_cast<int>(c), kAtOnce);
        listed += some;
        list.taken += some;
      }
      next[c] = next_of(list);
    }
    uint32_t touched = 0;
    for (uint32_t j = 0; j < listed; ++j) {
      const uint32_t c = class_of[j];
      const uint32_t i = j + entries[c].shift;
      const uint32_t rank = entries[c].ranks[i] - entries[c].start;
      const uint32_t word = WordOfRank(words[c].through, rank);
      const uint64_t bit = SelectBit(words[c].mask[word], rank - words[c].before[word]);
      here.listed[word] |= bit;
      touched |= 1u << word;
      here.step_at[kWord * word + static_cast<uint32_t>(std::countr_zero(bit))] =
          LoadAs<T>(entries[c].steps + i);
    }
    here.touched = touched;
  }
  if (n > 0) emit(placed[(n - 1) / kChunk % 2], (n - 1) % kChunk + 1);
  for (uint32_t c = 0; c < cuts.classes; ++c) lists[c].seen = seen[c];
  return found;
}

}  // namespace

void RankInClass(const void* bits, uint32_t width, uint32_t n, uint32_t first, const ClassCuts& cuts,
                 const uint32_t* pos, const void* old_bits, const void* steps, uint32_t k, RankList* lists) {
  const auto* p = static_cast<const uint8_t*>(bits);
  switch (width) {
    case 1: return RankWidth<uint8_t>(p, n, first, cuts, pos, old_bits, steps, k, lists);
    case 2: return RankWidth<uint16_t>(p, n, first, cuts, pos, old_bits, steps, k, lists);
    case 4: return RankWidth<uint32_t>(p, n, first, cuts, pos, old_bits, steps, k, lists);
    case 8: return RankWidth<uint64_t>(p, n, first, cuts, pos, old_bits, steps, k, lists);
  }
}

uint32_t PlaceInBase(const void* bits, uint32_t width, uint32_t n, uint32_t first, const ClassCuts& cuts,
                     ClassList* lists, uint32_t* pos, void* steps, void* base_bits) {
  const auto place = [&](auto* to) {
    using T = std::remove_pointer_t<decltype(to)>;
    return PlaceWidth(static_cast<const uint8_t*>(bits), n, first, cuts, lists, pos, to,
                      static_cast<T*>(base_bits));
  };
  switch (width) {
    case 1: return place(static_cast<uint8_t*>(steps));
    case 2: return place(static_cast<uint16_t*>(steps));
    case 4: return place(static_cast<uint32_t*>(steps));
    default: return place(static_cast<uint64_t*>(steps));
  }
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_CLASS_INL_H
