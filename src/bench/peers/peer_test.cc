#include "bench/peers/peer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "base/rng.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kSeed = 12;

struct Case {
  Bytes base;
  Bytes now;
  std::vector<uint32_t> changed;
  uint32_t width;
  uint64_t row;

  TensorPair Pair() const { return {base, now, width, row, changed}; }
};

// One element in `every` changes its lowest byte and sometimes others.
Case MakeCase(uint64_t elements, uint32_t width, uint64_t row, uint64_t every) {
  SeededRng rng(kSeed + elements + width + every);
  Case out{Bytes(elements * width), {}, {}, width, row};
  for (auto& byte : out.base) byte = static_cast<uint8_t>(rng.Next());
  out.now = out.base;
  for (uint64_t i = 0; i < elements; ++i) {
    if (every == 0 || rng.Next() % every != 0) continue;
    out.changed.push_back(static_cast<uint32_t>(i));
    for (uint32_t byte = 0; byte < width; ++byte) {
      if (byte == 0 || rng.Next() % 4 == 0) out.now[i * width + byte] ^= static_cast<uint8_t>(rng.Next() | 1);
    }
  }
  return out;
}

TEST(Peers, EveryMethodGivesTheNewBits) {
  RecordProperty("seed", std::to_string(kSeed));
  const auto peers = AllPeers();
  for (const uint64_t every : {0, 1, 7, 100, 60'000}) {
    for (const uint32_t width : {1, 2, 4, 8}) {
      for (const auto& [elements, row] : std::map<uint64_t, uint64_t>{
               {0, 1}, {1, 1}, {999, 37}, {30'000, 100}, {300'000, 300'000}, {300'002, 2}}) {
        const Case test = MakeCase(elements, width, row, every);
        for (const auto& peer : peers) {
          Bytes wire = {1, 2, 3};
          peer->Encode(test.Pair(), wire);
          Bytes bits = test.base;
          peer->Apply(wire, width, row, bits);
          EXPECT_EQ(bits == test.now, true)
              << peer->name() << ", " << elements << " elements of " << width << ", one in " << every;
        }
      }
    }
  }
}

std::map<std::string, double> BytesPerChange(const Case& test) {
  std::map<std::string, double> out;
  for (const auto& peer : AllPeers()) {
    Bytes wire;
    peer->Encode(test.Pair(), wire);
    out[std::string(peer->name())] =
        static_cast<double>(wire.size()) / static_cast<double>(test.changed.size());
  }
  return out;
}

// What the methods are known to cost: a method that lost its compression or its narrow widths is no honest
// peer.
TEST(Peers, SizesAreThoseOfTheirMethods) {
  SeededRng rng(kSeed);
  Case test = MakeCase(1'000'000, 2, 1000, 0);
  for (uint32_t i = 0; i < 1'000'000; ++i) {
    // Weights of a few magnitudes, of which one in a hundred moves by one.
    const auto word = static_cast<uint16_t>((rng.Next() % 6 + 118) << 7 | (rng.Next() & 0x807F));
    StoreLe(word, test.base.data() + 2 * i);
    const bool moves = rng.Next() % 100 == 0;
    StoreLe(static_cast<uint16_t>(moves ? word + 1 : word), test.now.data() + 2 * i);
    if (moves) test.changed.push_back(i);
  }
  const auto bytes = BytesPerChange(test);
  EXPECT_NEAR(bytes.at("raw_i32"), 6, 0.01);
  EXPECT_NEAR(bytes.at("gap"), 4, 0.01);
  EXPECT_LT(bytes.at("gap_xor_zstd1"), 1.9);
  EXPECT_LT(bytes.at("gap_value_zstd1"), 3.4);
  EXPECT_LT(bytes.at("coo_zstd1"), 3.8);
  EXPECT_LT(bytes.at("full_xor_zstd1"), 3.3);
  EXPECT_GT(bytes.at("full_xor_zstd1"), bytes.at("gap_xor_zstd1"));
  EXPECT_LT(bytes.at("overwrite_zstd1"), 5.1);
  EXPECT_NEAR(bytes.at("whole"), 2e6 / static_cast<double>(test.changed.size()), 1e-9);
  EXPECT_LT(bytes.at("whole_zstd3"), bytes.at("whole"));
  EXPECT_LT(bytes.at("patch_from"), bytes.at("whole_zstd3") / 4);
}

}  // namespace
}  // namespace deltawire::bench
