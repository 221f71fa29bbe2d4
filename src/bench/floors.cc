#include "bench/floors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <limits>

#include "bench/timing.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kChunk = 256;  // bytes of one stream a turn
constexpr int kMaxStreams = 8;
using Streams = std::array<const uint8_t*, kMaxStreams>;

// Each reads `bytes` (a multiple of kChunk) of kCount streams in lock step.
template <int kCount>
uint64_t ReadPlain(const Streams& from, uint64_t bytes, uint32_t ahead) {
  uint64_t sums[4] = {};
  for (uint64_t at = 0; at < bytes; at += kChunk) {
    for (int s = 0; s < kCount; ++s) {
      const uint8_t* p = from[s] + at;
      for (uint64_t i = 0; i < kChunk; i += 64) {
        if (ahead != 0) __builtin_prefetch(p + i + ahead);
        for (uint64_t j = 0; j < 64; j += 8) sums[j / 8 % 4] ^= LoadLe<uint64_t>(p + i + j);
      }
    }
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

#if defined(__x86_64__)
template <int kCount>
__attribute__((target("avx2"))) uint64_t ReadAvx2(const Streams& from, uint64_t bytes, uint32_t ahead) {
  __m256i sums[8] = {};
  for (uint64_t at = 0; at < bytes; at += kChunk) {
    for (int s = 0; s < kCount; ++s) {
      const uint8_t* p = from[s] + at;
      for (uint64_t i = 0; i < kChunk && ahead != 0; i += 64) __builtin_prefetch(p + i + ahead);
      for (int i = 0; i < 8; ++i) {
        sums[i] = _mm256_xor_si256(sums[i], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * i)));
      }
    }
  }
  for (int i = 1; i < 8; ++i) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
  return static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0));
}

template <int kCount>
__attribute__((target("avx512f"))) uint64_t ReadAvx512(const Streams& from, uint64_t bytes, uint32_t ahead) {
  __m512i sums[4] = {};
  for (uint64_t at = 0; at < bytes; at += kChunk) {
    for (int s = 0; s < kCount; ++s) {
      const uint8_t* p = from[s] + at;
      for (uint64_t i = 0; i < kChunk && ahead != 0; i += 64) __builtin_prefetch(p + i + ahead);
      for (int i = 0; i < 4; ++i) sums[i] = _mm512_xor_si512(sums[i], _mm512_loadu_si512(p + 64 * i));
    }
  }
  uint64_t words[8];
  _mm512_storeu_si512(
      words, _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3])));
  return words[0] ^ words[1] ^ words[2] ^ words[3] ^ words[4] ^ words[5] ^ words[6] ^ words[7];
}
#endif

template <int kCount>
uint64_t ReadWidest(const Streams& from, uint64_t bytes, uint32_t ahead) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return ReadAvx512<kCount>(from, bytes, ahead);
  if (__builtin_cpu_supports("avx2")) return ReadAvx2<kCount>(from, bytes, ahead);
#endif
  return ReadPlain<kCount>(from, bytes, ahead);
}

uint64_t ReadStreams(int count, const Streams& from, uint64_t bytes, uint32_t ahead) {
  switch (count) {
    case 1: return ReadWidest<1>(from, bytes, ahead);
    case 2: return ReadWidest<2>(from, bytes, ahead);
    case 3: return ReadWidest<3>(from, bytes, ahead);
    case 4: return ReadWidest<4>(from, bytes, ahead);
    default: return ReadWidest<kMaxStreams>(from, bytes, ahead);
  }
}

// prefetchw exists, at least as a no-op, on every x86-64 processor in use; without the attribute the hint
// would be one for reading.
#if defined(__x86_64__)
__attribute__((target("prfchw")))
#endif
void ScatterPart(const ScatterFloor::Part& part, uint32_t ahead) {
  const uint64_t n = part.positions.size();
  const uint32_t* positions = part.positions.data();
  uint64_t i = 0;
  for (; ahead != 0 && i + ahead < n; ++i) {
    __builtin_prefetch(part.to + positions[i + ahead], 1, 3);
    part.to[positions[i]] = part.bits[i];
  }
  for (; i < n; ++i) part.to[positions[i]] = part.bits[i];
}

}  // namespace

ReadFloor::ReadFloor(std::vector<ByteSpan> arrays, const Parallel& parallel)
    : arrays_(std::move(arrays)), parallel_(parallel) {
  // Where they are not of equal size after all: what is common to them, and never beyond one's end.
  const auto shortest = std::ranges::min_element(arrays_, {}, &ByteSpan::size)->size();
  for (ByteSpan& array : arrays_) array = array.first(shortest);
  std::vector<ReadPlan> plans;
  for (const uint32_t ahead : {0u, 1024u, 4096u}) {
    for (const int streams : {1, 2, 4, kMaxStreams}) plans.push_back({false, streams, ahead});
    if (arrays_.size() > 1) plans.push_back({true, 1, ahead});
  }
  double best = std::numeric_limits<double>::infinity();
  for (const ReadPlan& plan : plans) {
    const double taken = BestOf(2, {{[&] { Read(plan); }}})[0].Of(parallel_.threads());
    if (taken >= best) continue;
    best = taken;
    plan_ = plan;
  }
}

uint64_t ReadFloor::bytes() const { return arrays_.size() * arrays_[0].size(); }

void ReadFloor::Read(const ReadPlan& plan) const {
  const auto threads = static_cast<uint64_t>(parallel_.threads());
  // A remainder below one chunk a stream is left unread: less than a millionth at the sizes measured.
  const uint64_t each = arrays_[0].size() / threads;
  parallel_.For(threads, [&](uint64_t thread) {
    uint64_t sum = 0;
    Streams from{};
    if (plan.lock_step) {
      for (size_t a = 0; a < arrays_.size(); ++a) from[a] = arrays_[a].data() + thread * each;
      sum = ReadStreams(static_cast<int>(arrays_.size()), from, each / kChunk * kChunk, plan.ahead);
    } else {
      const uint64_t piece = each / static_cast<uint64_t>(plan.streams) / kChunk * kChunk;
      for (const ByteSpan array : arrays_) {
        for (int s = 0; s < plan.streams; ++s) {
          from[static_cast<size_t>(s)] = array.data() + thread * each + static_cast<uint64_t>(s) * piece;
        }
        sum ^= ReadStreams(plan.streams, from, piece, plan.ahead);
      }
    }
    sink_.fetch_xor(sum, std::memory_order_relaxed);
  });
}

ScatterFloor::ScatterFloor(std::vector<Part> parts, const Parallel& parallel)
    : parts_(std::move(parts)), parallel_(parallel) {
  double best = std::numeric_limits<double>::infinity();
  for (const uint32_t ahead : {0u, 16u, 32u, 64u, 128u}) {
    const double taken = BestOf(3, {{[&] { Scatter(ahead); }}})[0].Of(parallel_.threads());
    if (taken >= best) continue;
    best = taken;
    ahead_ = ahead;
  }
}

void ScatterFloor::Scatter(uint32_t ahead) const {
  parallel_.For(parts_.size(), [&](uint64_t i) { ScatterPart(parts_[i], ahead); });
}

}  // namespace deltawire::bench
