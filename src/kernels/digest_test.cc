// The state digest against its published vectors and its algebra. Every backend.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/hash.h"
#include "kernels/element.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {
namespace {

struct Lanes {
  uint64_t v[2] = {0, 0};
  bool operator==(const Lanes&) const = default;
};

Lanes DigestOf(const Table& table, const void* data, Cast cast, uint32_t n, uint64_t canonical,
               uint64_t key) {
  Lanes lanes;
  table.digest(Source{data, 0}, cast, n, canonical, key, lanes.v);
  return lanes;
}
uint64_t KeyOf(std::string_view name) { return Xxh3_64(AsBytes(name)); }

// The definition once more, word by word from the zero-extended bytes of a whole tensor.
Lanes DigestOfBytes(std::vector<uint8_t> bytes, uint64_t key) {
  bytes.resize((bytes.size() + 7) / 8 * 8);
  Lanes lanes;
  for (uint64_t j = 0; j < bytes.size() / 8; ++j) {
    uint64_t little = 0, big = 0;
    for (int k = 0; k < 8; ++k) {
      little |= uint64_t{bytes[8 * j + k]} << (8 * k);
      big |= uint64_t{bytes[8 * j + k]} << (8 * (7 - k));
    }
    const uint64_t i = j % 512, b = j / 512, g = 0x9E3779B97F4A7C15;
    lanes.v[0] += (DigestMix((2 * i + 1) * g) | 1) * (DigestMix(key + (2 * b + 1) * g) | 1) * little;
    lanes.v[1] += (DigestMix((2 * i + 2) * g) | 1) * (DigestMix(key + (2 * b + 2) * g) | 1) * big;
  }
  return lanes;
}

std::vector<uint8_t> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<uint8_t> bytes(size);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(rng());
  return bytes;
}

constexpr Cast kPlain[] = {Cast::kBits8, Cast::kBits16, Cast::kBits32, Cast::kBits64};

class DigestTest : public testing::TestWithParam<const Table*> {};
INSTANTIATE_TEST_SUITE_P(Backends, DigestTest, testing::Values(&RefTable(), &CpuTable()),
                         [](const auto& tested) { return std::string(tested.index == 0 ? "ref" : "cpu"); });

TEST_P(DigestTest, PublishedVectors) {
  const uint8_t eleven[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  EXPECT_EQ(DigestOf(*GetParam(), eleven, Cast::kBits8, 11, 0, KeyOf("model.norm.weight")),
            (Lanes{{0x04b63a2e5c743da2, 0x819b7c8077840008}}));
  const uint8_t two[] = {0x80, 0x3f, 0x81, 0x3f};
  EXPECT_EQ(DigestOf(*GetParam(), two, Cast::kBits16, 2, 4096, KeyOf("w")),
            (Lanes{{0x134cb635a3e9f880, 0x2d17b62300000000}}));
}

TEST_P(DigestTest, EveryWidthReadsTheSameWords) {
  const auto bytes = RandomBytes(20 * 1024 + 40, 11);
  const Lanes expected = DigestOfBytes(bytes, 77);
  for (Cast cast : kPlain) {
    EXPECT_EQ(DigestOf(*GetParam(), bytes.data(), cast,
                       static_cast<uint32_t>(bytes.size() / StoredBytes(cast)), 0, 77),
              expected)
        << StoredBytes(cast);
  }
}

TEST_P(DigestTest, PartitionsAddUpAtEveryCut) {
  const auto bytes = RandomBytes(9000 + 16, 12);
  for (Cast cast : kPlain) {
    const uint32_t width = StoredBytes(cast), n = static_cast<uint32_t>(9000 / width);
    const uint64_t start = 4096 - 8 * 5 + (8 - width);  // begins inside a word, crosses a row
    const Lanes whole = DigestOf(*GetParam(), bytes.data(), cast, n, start, 5);
    std::mt19937 rng(13);
    for (int trial = 0; trial < 300; ++trial) {
      const uint32_t cut = trial < 40 ? trial : rng() % n;
      Lanes sum;
      GetParam()->digest(Source{bytes.data(), 0}, cast, cut, start, 5, sum.v);
      GetParam()->digest(Source{bytes.data(), uint64_t{cut} * width}, cast, n - cut,
                         start + uint64_t{cut} * width, 5, sum.v);
      ASSERT_EQ(sum, whole) << "width " << width << " cut " << cut;
    }
  }
}

TEST_P(DigestTest, OffsetsBeyondFourGigabytes) {
  const auto bytes = RandomBytes(4096, 14);
  const uint64_t far = (uint64_t{1} << 40) + 6;
  Lanes expected;
  for (uint64_t i = 0; i < 2048; ++i) {
    DigestElement(9, far + 2 * i, LoadAs<uint16_t>(bytes.data() + 2 * i), expected.v);
  }
  EXPECT_EQ(DigestOf(*GetParam(), bytes.data(), Cast::kBits16, 2048, far, 9), expected);
}

TEST_P(DigestTest, ServedBitsAreDigestedAfterTheCast) {
  auto bytes = RandomBytes(4 * 3000, 15);
  const uint32_t nan = 0x7F800001;
  std::memcpy(bytes.data() + 40, &nan, 4);
  for (Cast cast : {Cast::kF32ToBf16, Cast::kF32ToF16, Cast::kBf16ToF32, Cast::kF16ToF32}) {
    std::vector<uint8_t> served(3000 * ServedBytes(cast));
    RefTable().read(Source{bytes.data(), 0}, cast, 3000, served.data());
    const Cast plain = ServedBytes(cast) == 2 ? Cast::kBits16 : Cast::kBits32;
    EXPECT_EQ(DigestOf(*GetParam(), bytes.data(), cast, 3000, 100, 3),
              DigestOf(*GetParam(), served.data(), plain, 3000, 100, 3));
  }
}

TEST_P(DigestTest, NothingIsTheZeroDigest) {
  EXPECT_EQ(DigestOf(*GetParam(), nullptr, Cast::kBits16, 0, 2, 1), Lanes{});
  const std::vector<uint8_t> zeros(5000);
  EXPECT_EQ(DigestOf(*GetParam(), zeros.data(), Cast::kBits16, 2500, 2, 1), Lanes{});
}

}  // namespace
}  // namespace deltawire::kernels
