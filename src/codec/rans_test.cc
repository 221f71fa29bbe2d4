#include "codec/rans.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace deltawire::codec {
namespace {

FrequencyTable TableOf(std::initializer_list<std::pair<uint8_t, uint16_t>> frequencies) {
  FrequencyTable table;
  for (const auto& [symbol, frequency] : frequencies) table.frequency[symbol] = frequency;
  return table;
}

void ExpectRoundTrip(const FrequencyTable& table, const std::vector<uint8_t>& symbols, unsigned lanes) {
  const RansEncodeTable encode(table);
  const RansDecodeTable decode(table);
  Bytes out;
  const RansSegment segments[] = {{&encode, symbols}, {&encode, {}}, {&encode, symbols}};
  ASSERT_TRUE(RansEncode(segments, lanes, out));
  out.push_back(0x77);
  RansDecoder decoder;
  ASSERT_TRUE(decoder.Start(out, lanes));
  std::vector<uint8_t> back(symbols.size());
  for (int segment = 0; segment < 2; ++segment) {
    ASSERT_TRUE(decoder.Decode(decode, back));
    EXPECT_EQ(back, symbols);
  }
  EXPECT_TRUE(decoder.AtEnd());
  ASSERT_EQ(decoder.rest().size(), 1u);
  EXPECT_EQ(decoder.rest()[0], 0x77);
}

TEST(Rans, RoundTripOfEveryLaneCountAndLength) {
  SeededRng rng(21);
  const FrequencyTable table = TableOf({{0, 1}, {7, 2000}, {9, 2001}, {255, 94}});
  const uint8_t alphabet[] = {0, 7, 9, 255};
  for (const unsigned lanes : {1u, 2u, 4u, 8u, 16u}) {
    for (size_t count = 0; count < 70; ++count) {
      std::vector<uint8_t> symbols(count);
      for (uint8_t& symbol : symbols) symbol = alphabet[rng.Next() % 4];
      ExpectRoundTrip(table, symbols, lanes);
    }
  }
}

// States reach 2^32: reciprocals of 32 bits are wrong above 2^31 (one lane, so that states climb).
TEST(Rans, EveryFrequencyWithLargeStates) {
  SeededRng rng(22);
  for (uint32_t f = 1; f < kFrequencySum; ++f) {
    const FrequencyTable table =
        TableOf({{1, static_cast<uint16_t>(f)}, {2, static_cast<uint16_t>(kFrequencySum - f)}});
    std::vector<uint8_t> symbols(100);
    for (uint8_t& symbol : symbols) symbol = static_cast<uint8_t>(1 + rng.Next() % 2);
    ExpectRoundTrip(table, symbols, 1);
  }
}

TEST(Rans, QuotientIsExactForEveryFrequency) {
  SeededRng rng(23);
  for (uint32_t f = 1; f <= kFrequencySum; ++f) {
    FrequencyTable table = TableOf({{0, static_cast<uint16_t>(f)}});
    if (f < kFrequencySum) table.frequency[1] = static_cast<uint16_t>(kFrequencySum - f);
    const RansEncodeTable encode(table);
    const RansEncodeTable::Symbol& s = encode[0];
    for (int i = 0; i < 200; ++i) {
      uint32_t state = static_cast<uint32_t>(rng.Next()) | 1u << 31;
      if (i < 4) state = ~0u - static_cast<uint32_t>(i);
      if (i >= 4 && i < 12) state = (1u << 31) / f * f + static_cast<uint32_t>(i) - 8;
      if (state > s.limit) state = s.limit - static_cast<uint32_t>(i) % f;
      const auto quotient = static_cast<uint32_t>(static_cast<unsigned __int128>(state) * s.reciprocal >> 64);
      EXPECT_EQ(state + s.bias + quotient * s.complement, (state / f << kFrequencyBits) + state % f)
          << state << " / " << f;
    }
  }
}

TEST(Rans, OneSymbolCostsNothing) {
  const FrequencyTable table = TableOf({{42, kFrequencySum}});
  const RansEncodeTable encode(table);
  const std::vector<uint8_t> symbols(10'000, 42);
  Bytes out;
  const RansSegment segments[] = {{&encode, symbols}};
  ASSERT_TRUE(RansEncode(segments, 1, out));
  EXPECT_EQ(out.size(), 4u);
  ExpectRoundTrip(table, symbols, 16);
}

TEST(Rans, AbsentSymbolIsRefused) {
  const RansEncodeTable encode(TableOf({{42, kFrequencySum}}));
  const std::vector<uint8_t> symbols = {42, 41};
  Bytes out{9};
  const RansSegment segments[] = {{&encode, symbols}};
  EXPECT_FALSE(RansEncode(segments, 1, out));
  EXPECT_EQ(out, Bytes{9});
}

}  // namespace
}  // namespace deltawire::codec
