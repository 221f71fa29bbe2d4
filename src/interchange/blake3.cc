#include "interchange/blake3.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace deltawire::interchange {
namespace {

using Words = std::array<uint32_t, 8>;

constexpr size_t kBlock = 64;
constexpr size_t kChunk = 1024;
constexpr Words kIv = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                       0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
constexpr std::array<uint8_t, 16> kPermutation = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};

constexpr uint32_t kChunkStart = 1;
constexpr uint32_t kChunkEnd = 2;
constexpr uint32_t kParent = 4;
constexpr uint32_t kRoot = 8;

// Section 2.2 of the specification; the first eight words of the result.
Words Compress(const Words& chaining, const std::array<uint32_t, 16>& block, uint64_t counter,
               uint32_t block_bytes, uint32_t flags) {
  std::array<uint32_t, 16> v;
  std::copy(chaining.begin(), chaining.end(), v.begin());
  std::copy(kIv.begin(), kIv.begin() + 4, v.begin() + 8);
  v[12] = static_cast<uint32_t>(counter);
  v[13] = static_cast<uint32_t>(counter >> 32);
  v[14] = block_bytes;
  v[15] = flags;
  std::array<uint32_t, 16> m = block;
  const auto mix = [&](int a, int b, int c, int d, uint32_t x, uint32_t y) {
    v[a] += v[b] + x;
    v[d] = std::rotr(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = std::rotr(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = std::rotr(v[b] ^ v[c], 7);
  };
  for (int round = 0; round < 7; ++round) {
    mix(0, 4, 8, 12, m[0], m[1]);
    mix(1, 5, 9, 13, m[2], m[3]);
    mix(2, 6, 10, 14, m[4], m[5]);
    mix(3, 7, 11, 15, m[6], m[7]);
    mix(0, 5, 10, 15, m[8], m[9]);
    mix(1, 6, 11, 12, m[10], m[11]);
    mix(2, 7, 8, 13, m[12], m[13]);
    mix(3, 4, 9, 14, m[14], m[15]);
    std::array<uint32_t, 16> permuted;
    for (size_t i = 0; i < 16; ++i) permuted[i] = m[kPermutation[i]];
    m = permuted;
  }
  Words out;
  for (size_t i = 0; i < 8; ++i) out[i] = v[i] ^ v[i + 8];
  return out;
}

// root: kRoot where this chunk is the whole input.
Words ChunkValue(ByteSpan chunk, uint64_t counter, uint32_t root) {
  Words chaining = kIv;
  size_t at = 0;
  do {
    const size_t bytes = std::min(kBlock, chunk.size() - at);
    std::array<uint32_t, 16> block{};
    if (bytes > 0) std::memcpy(block.data(), chunk.data() + at, bytes);
    uint32_t flags = at == 0 ? kChunkStart : 0;
    if (at + bytes == chunk.size()) flags |= kChunkEnd | root;
    chaining = Compress(chaining, block, counter, static_cast<uint32_t>(bytes), flags);
    at += bytes;
  } while (at < chunk.size());
  return chaining;
}

Words ParentValue(const Words& left, const Words& right, uint32_t root) {
  std::array<uint32_t, 16> block;
  std::copy(left.begin(), left.end(), block.begin());
  std::copy(right.begin(), right.end(), block.begin() + 8);
  return Compress(kIv, block, 0, kBlock, kParent | root);
}

}  // namespace

std::array<uint8_t, 32> Blake3(ByteSpan bytes) {
  const uint64_t chunks = bytes.empty() ? 1 : (bytes.size() + kChunk - 1) / kChunk;
  Words root;
  if (chunks == 1) {
    root = ChunkValue(bytes, 0, kRoot);
  } else {
    // Complete subtrees, largest first: the set bits of the number of chunks done. The last chunk stays out
    // until the end, so that the root's flag is known when its node is computed.
    std::vector<Words> subtrees;
    for (uint64_t i = 0; i + 1 < chunks; ++i) {
      Words value = ChunkValue(bytes.subspan(i * kChunk, kChunk), i, 0);
      for (uint64_t done = i + 1; (done & 1) == 0; done >>= 1) {
        value = ParentValue(subtrees.back(), value, 0);
        subtrees.pop_back();
      }
      subtrees.push_back(value);
    }
    root = ChunkValue(bytes.subspan((chunks - 1) * kChunk), chunks - 1, 0);
    while (!subtrees.empty()) {
      root = ParentValue(subtrees.back(), root, subtrees.size() == 1 ? kRoot : 0);
      subtrees.pop_back();
    }
  }
  std::array<uint8_t, 32> out;
  std::memcpy(out.data(), root.data(), out.size());
  return out;
}

}  // namespace deltawire::interchange
