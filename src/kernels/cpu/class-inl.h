// Ranks within classes and back, in batches of 2048 elements: a bit mask of each class, the class's elements
// up to each word of it, and then a few instructions a listed element. Class by class inside a batch, so that
// no branch depends on a single element.
#if defined(DELTAWIRE_KERNELS_CPU_CLASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_CLASS_INL_H_
#undef DELTAWIRE_KERNELS_CPU_CLASS_INL_H_
#else
#define DELTAWIRE_KERNELS_CPU_CLASS_INL_H_
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

struct ClassBatch {
  HWY_ALIGN uint64_t mask[kMaxClasses][kWords];
  // Elements of the class up to the word: without it, and with it.
  HWY_ALIGN uint16_t before[kMaxClasses][kWords];
  HWY_ALIGN uint16_t through[kMaxClasses][kWords];
  uint32_t total[kMaxClasses];
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

template <typename T, uint32_t kClasses>
HWY_INLINE void FillMasks(const uint8_t* p, uint32_t words, const ClassCuts& cuts, ClassBatch& batch) {
  __m512i cut[kClasses];
  __mmask64 used[kClasses];
  for (uint32_t c = 1; c < kClasses; ++c) {
    cut[c] = _mm512_set1_epi8(static_cast<char>(c < cuts.classes ? cuts.cut[c - 1] : 0));
    used[c] = c < cuts.classes ? ~uint64_t{0} : 0;
  }
  for (uint32_t w = 0; w < words; ++w) {
    const uint8_t* at = p + uint64_t{w} * kWord * sizeof(T);
    // The next batch; an address, not an element: it may lie behind the run.
    const auto ahead = reinterpret_cast<uintptr_t>(at) + kChunk * sizeof(T);
    for (uint32_t line = 0; line < sizeof(T); ++line) {
      __builtin_prefetch(reinterpret_cast<const void*>(ahead + kWord * line));
    }
    const __m512i keys = KeysOf<T>(at);
    uint64_t above = ~uint64_t{0};
    for (uint32_t c = 1; c < kClasses; ++c) {
      const uint64_t next = _mm512_mask_cmpge_epu8_mask(used[c], keys, cut[c]);
      batch.mask[c - 1][w] = above & ~next;
      above = next;
    }
    batch.mask[kClasses - 1][w] = above;
  }
}

template <typename T>
HWY_INLINE void MakeMasks(const uint8_t* p, uint32_t words, const ClassCuts& cuts, ClassBatch& batch) {
  if (cuts.classes <= 4) return FillMasks<T, 4>(p, words, cuts, batch);
  if (cuts.classes <= 8) return FillMasks<T, 8>(p, words, cuts, batch);
  if (cuts.classes <= 12) return FillMasks<T, 12>(p, words, cuts, batch);
  return FillMasks<T, kMaxClasses>(p, words, cuts, batch);
}

HWY_INLINE uint32_t CountClass(const uint64_t* mask) {
  __m512i sum = _mm512_popcnt_epi64(_mm512_load_si512(mask));
  for (uint32_t w = 8; w < kWords; w += 8) {
    sum = _mm512_add_epi64(sum, _mm512_popcnt_epi64(_mm512_load_si512(mask + w)));
  }
  return static_cast<uint32_t>(_mm512_reduce_add_epi64(sum));
}

HWY_INLINE void SumWords(uint32_t c, ClassBatch& batch) {
  const auto counts_of = [&](uint32_t w) {
    return _mm512_cvtepi64_epi16(_mm512_popcnt_epi64(_mm512_load_si512(batch.mask[c] + w)));
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
  _mm512_store_si512(batch.through[c], sum);
  _mm512_store_si512(batch.before[c], _mm512_sub_epi16(sum, counts));
}

// Words that end at or before the element of this rank.
HWY_INLINE uint32_t WordOfRank(const uint16_t* through, uint32_t rank) {
  const __m512i ranks = _mm512_set1_epi16(static_cast<int16_t>(rank));
  return static_cast<uint32_t>(std::popcount(_mm512_cmple_epu16_mask(_mm512_load_si512(through), ranks)));
}

// Writes up to 64 entries beyond what counts.
template <typename T>
HWY_INLINE uint32_t Emit(uint64_t listed, uint32_t first, const T* steps, uint32_t* pos, T* out) {
  const auto count = static_cast<uint32_t>(std::popcount(listed));
  const __m512i index = _mm512_maskz_compress_epi8(listed, _mm512_load_si512(kIota.at));
  const __m512i base = _mm512_set1_epi32(static_cast<int>(first));
  _mm512_storeu_si512(pos, _mm512_add_epi32(base, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(index))));
  if (count > 16) {
    _mm512_storeu_si512(pos + 16,
                        _mm512_add_epi32(base, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(index, 1))));
    if (count > 32) {
      _mm512_storeu_si512(pos + 32,
                          _mm512_add_epi32(base, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(index, 2))));
      _mm512_storeu_si512(pos + 48,
                          _mm512_add_epi32(base, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(index, 3))));
    }
  }
  constexpr uint32_t kStep = kWord / sizeof(T);
  for (uint32_t part = 0; part < sizeof(T); ++part) {
    const __m512i values = _mm512_loadu_si512(steps + kStep * part);
    const uint64_t some = kStep == 64 ? listed : listed >> (kStep * part) & ((uint64_t{1} << kStep % 64) - 1);
    __m512i packed;
    if constexpr (sizeof(T) == 1) packed = _mm512_maskz_compress_epi8(some, values);
    if constexpr (sizeof(T) == 2) packed = _mm512_maskz_compress_epi16(static_cast<__mmask32>(some), values);
    if constexpr (sizeof(T) == 4) packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(some), values);
    if constexpr (sizeof(T) == 8) packed = _mm512_maskz_compress_epi64(static_cast<__mmask8>(some), values);
    _mm512_storeu_si512(out, packed);
    out += std::popcount(some);
  }
  return count;
}

#else

template <typename T>
HWY_INLINE void MakeMasks(const uint8_t* p, uint32_t words, const ClassCuts& cuts, ClassBatch& batch) {
  const hn::CappedTag<uint8_t, kWord> d;
  for (uint32_t w = 0; w < words; ++w) {
    const uint8_t* at = p + uint64_t{w} * kWord * sizeof(T);
    HWY_ALIGN uint8_t keys[kWord];
    for (uint32_t i = 0; i < kWord; ++i) {
      keys[i] = static_cast<uint8_t>(uint64_t{LoadAs<T>(at + i * sizeof(T))} << 1 >> (8 * sizeof(T) - 8));
    }
    uint64_t above = ~uint64_t{0};
    for (uint32_t c = 1; c < cuts.classes; ++c) {
      const auto cut = hn::Set(d, cuts.cut[c - 1]);
      uint64_t next = 0;
      for (uint32_t i = 0; i < kWord; i += hn::Lanes(d)) {
        uint8_t bits[8] = {};
        // No comparison of unsigned bytes everywhere: the larger of the two is the key where it reaches the
        // cut.
        const auto key = hn::Load(d, keys + i);
        hn::StoreMaskBits(d, hn::Eq(hn::Max(key, cut), key), bits);
        next |= LoadAs<uint64_t>(bits) << i;
      }
      batch.mask[c - 1][w] = above & ~next;
      above = next;
    }
    batch.mask[cuts.classes - 1][w] = above;
  }
}

HWY_INLINE uint32_t CountClass(const uint64_t* mask) {
  uint32_t sum = 0;
  for (uint32_t w = 0; w < kWords; ++w) sum += static_cast<uint32_t>(std::popcount(mask[w]));
  return sum;
}

HWY_INLINE void SumWords(uint32_t c, ClassBatch& batch) {
  uint32_t sum = 0;
  for (uint32_t w = 0; w < kWords; ++w) {
    batch.before[c][w] = static_cast<uint16_t>(sum);
    sum += static_cast<uint32_t>(std::popcount(batch.mask[c][w]));
    batch.through[c][w] = static_cast<uint16_t>(sum);
  }
}

HWY_INLINE uint32_t WordOfRank(const uint16_t* through, uint32_t rank) {
  uint32_t word = 0;
  for (uint32_t w = 0; w < kWords; ++w) word += through[w] <= rank;
  return word;
}

template <typename T>
HWY_INLINE uint32_t Emit(uint64_t listed, uint32_t first, const T* steps, uint32_t* pos, T* out) {
  uint32_t count = 0;
  for (; listed != 0; listed &= listed - 1) {
    const auto i = static_cast<uint32_t>(std::countr_zero(listed));
    pos[count] = first + i;
    out[count++] = steps[i];
  }
  return count;
}

#endif

// Position of the set bit with `rank` set bits below it; there is one.
HWY_INLINE uint32_t SelectBit(uint64_t bits, uint32_t rank) {
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  return static_cast<uint32_t>(_tzcnt_u64(_pdep_u64(uint64_t{1} << rank, bits)));
#else
  for (; rank > 0; --rank) bits &= bits - 1;
  return static_cast<uint32_t>(std::countr_zero(bits));
#endif
}

// Masks and totals of count <= kChunk elements. Beyond them every mask is zero.
template <typename T>
HWY_INLINE void FillBatch(const uint8_t* p, uint32_t count, const ClassCuts& cuts, ClassBatch& batch) {
  MakeMasks<T>(p, count / kWord, cuts, batch);
  if (count < kChunk) {
    uint32_t w = count / kWord;
    if (count % kWord != 0) {
      // The last elements again, from a full word of their own.
      uint8_t tail[kWord * sizeof(T)] = {};
      std::memcpy(tail, p + uint64_t{w} * sizeof(tail), count % kWord * sizeof(T));
      ClassBatch last;
      MakeMasks<T>(tail, 1, cuts, last);
      const uint64_t valid = (uint64_t{1} << count % kWord) - 1;
      for (uint32_t c = 0; c < cuts.classes; ++c) batch.mask[c][w] = last.mask[c][0] & valid;
      ++w;
    }
    for (uint32_t c = 0; c < cuts.classes; ++c) {
      std::memset(batch.mask[c] + w, 0, (kWords - w) * sizeof(uint64_t));
    }
  }
  for (uint32_t c = 0; c < cuts.classes; ++c) batch.total[c] = CountClass(batch.mask[c]);
}

template <typename T>
void RankWidth(const uint8_t* p, uint32_t n, const ClassCuts& cuts, const uint32_t* pos, uint32_t k,
               uint32_t* seen, uint8_t* classes, uint32_t* ranks) {
  ClassBatch batch;
  uint8_t class_of[256];
  uint32_t c = 0;
  for (uint32_t key = 0; key < 256; ++key) {
    if (c + 1 < cuts.classes && cuts.cut[c] <= key) ++c;
    class_of[key] = static_cast<uint8_t>(c);
  }
  uint32_t i = 0;
  for (uint32_t begin = 0; begin < n; begin += kChunk) {
    const uint32_t count = n - begin < kChunk ? n - begin : kChunk;
    const uint8_t* from = p + uint64_t{begin} * sizeof(T);
    FillBatch<T>(from, count, cuts, batch);
    uint32_t summed = 0;
    for (; i < k && pos[i] - begin < count; ++i) {
      const uint32_t at = pos[i] - begin;
      const uint32_t word = at / kWord;
      const auto key = static_cast<uint8_t>(uint64_t{LoadAs<T>(from + uint64_t{at} * sizeof(T))} << 1 >>
                                            (8 * sizeof(T) - 8));
      const uint32_t mine = class_of[key];
      if ((summed >> mine & 1) == 0) {
        SumWords(mine, batch);
        summed |= 1u << mine;
      }
      const uint64_t below = batch.mask[mine][word] & ((uint64_t{1} << at % kWord) - 1);
      classes[i] = static_cast<uint8_t>(mine);
      ranks[i] = seen[mine] + batch.before[mine][word] + static_cast<uint32_t>(std::popcount(below));
    }
    for (uint32_t each = 0; each < cuts.classes; ++each) seen[each] += batch.total[each];
  }
}

template <typename T>
uint32_t PlaceWidth(const uint8_t* p, uint32_t n, uint32_t first, const ClassCuts& cuts, ClassList* lists,
                    uint32_t* pos, T* steps) {
  ClassBatch batch;
  HWY_ALIGN uint64_t listed[kWords];
  HWY_ALIGN T step_at[kChunk];
  uint32_t found = 0;
  for (uint32_t begin = 0; begin < n; begin += kChunk) {
    const uint32_t count = n - begin < kChunk ? n - begin : kChunk;
    FillBatch<T>(p + uint64_t{begin} * sizeof(T), count, cuts, batch);
    std::memset(listed, 0, sizeof(listed));
    uint32_t touched = 0;
    for (uint32_t c = 0; c < cuts.classes; ++c) {
      ClassList& list = lists[c];
      const uint32_t seen = list.seen;
      const uint32_t end = seen + batch.total[c];
      list.seen = end;
      uint32_t i = list.taken;
      if (i == list.count || list.ranks[i] >= end) continue;
      SumWords(c, batch);
      do {
        const uint32_t rank = list.ranks[i] - seen;
        const uint32_t word = WordOfRank(batch.through[c], rank);
        const uint32_t bit = SelectBit(batch.mask[c][word], rank - batch.before[c][word]);
        listed[word] |= uint64_t{1} << bit;
        touched |= 1u << word;
        step_at[kWord * word + bit] = LoadAs<T>(static_cast<const T*>(list.steps) + i);
        ++i;
      } while (i < list.count && list.ranks[i] < end);
      list.taken = i;
    }
    for (; touched != 0; touched &= touched - 1) {
      const auto word = static_cast<uint32_t>(std::countr_zero(touched));
      found += Emit(listed[word], first + begin + kWord * word, step_at + kWord * word, pos + found,
                    steps + found);
    }
  }
  return found;
}

}  // namespace

void RankInClass(const void* bits, uint32_t width, uint32_t n, const ClassCuts& cuts, const uint32_t* pos,
                 uint32_t k, uint32_t* seen, uint8_t* classes, uint32_t* ranks) {
  const auto* p = static_cast<const uint8_t*>(bits);
  switch (width) {
    case 1: return RankWidth<uint8_t>(p, n, cuts, pos, k, seen, classes, ranks);
    case 2: return RankWidth<uint16_t>(p, n, cuts, pos, k, seen, classes, ranks);
    case 4: return RankWidth<uint32_t>(p, n, cuts, pos, k, seen, classes, ranks);
    case 8: return RankWidth<uint64_t>(p, n, cuts, pos, k, seen, classes, ranks);
  }
}

uint32_t PlaceInBase(const void* bits, uint32_t width, uint32_t n, uint32_t first, const ClassCuts& cuts,
                     ClassList* lists, uint32_t* pos, void* steps) {
  const auto* p = static_cast<const uint8_t*>(bits);
  switch (width) {
    case 1: return PlaceWidth(p, n, first, cuts, lists, pos, static_cast<uint8_t*>(steps));
    case 2: return PlaceWidth(p, n, first, cuts, lists, pos, static_cast<uint16_t*>(steps));
    case 4: return PlaceWidth(p, n, first, cuts, lists, pos, static_cast<uint32_t*>(steps));
    default: return PlaceWidth(p, n, first, cuts, lists, pos, static_cast<uint64_t*>(steps));
  }
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_CLASS_INL_H_
