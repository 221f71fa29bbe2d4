// Bytes that no encoder wrote: an error, or some valid result; never undefined behaviour.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "codec/test_block.h"

namespace deltawire::codec {
namespace {

// What every result must satisfy, whatever the bytes were.
void ExpectValid(const Decoded& decoded, uint32_t elements, uint32_t width) {
  const auto ascending = [&](const std::vector<uint32_t>& positions) {
    return std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>()) ==
               positions.end() &&
           (positions.empty() || positions.back() < elements);
  };
  EXPECT_TRUE(ascending(decoded.changed));
  EXPECT_TRUE(ascending(decoded.uncertain));
  std::vector<uint32_t> both;
  std::set_intersection(decoded.changed.begin(), decoded.changed.end(), decoded.uncertain.begin(),
                        decoded.uncertain.end(), std::back_inserter(both));
  EXPECT_TRUE(both.empty());
  ASSERT_EQ(decoded.values.size(), decoded.changed.size() * width);
  ASSERT_EQ(decoded.uncertain_bits.size(), decoded.uncertain.size() * width);
  ASSERT_EQ(decoded.uncertain_residue.size(), decoded.uncertain.size());
  for (const uint8_t residue : decoded.uncertain_residue) EXPECT_TRUE(residue < 4 || residue == 0xFF);
  const Bytes old_changed(decoded.values.size(), 0x5A);
  const Bytes old_uncertain(decoded.uncertain_bits.size(), 0xA5);
  Bytes new_changed(old_changed.size());
  Bytes new_uncertain(old_uncertain.size());
  Resolve(decoded, old_changed, old_uncertain, new_changed, new_uncertain);
}

void ExpectCorruptOrValid(const Decoder& decoder, Coding coding, const TestBlock& block, ByteSpan stream) {
  const auto decoded = Decode(decoder, coding, block, stream);
  if (decoded) {
    ExpectValid(*decoded, block.elements, block.width);
  } else {
    EXPECT_TRUE(decoded.error().code() == Code::kCorrupt ||
                (coding == Coding::kClass && decoded.error().code() == Code::kWrongBase));
  }
}

// A part that uses every form: tables, varint, fixed, absent positions.
std::vector<TestBlock> SmallBlocks() {
  SeededRng rng(11);
  std::vector<TestBlock> blocks;
  blocks.push_back(RandomBlock(rng, 3000, 2, 0.05, 0.01, Steps::kSmall));
  blocks.push_back(RandomBlock(rng, 3000, 2, 0.05, 0.01, Steps::kSmall));
  blocks.push_back(RandomBlock(rng, 3000, 2, 0.001, 0.001, Steps::kSmall));
  blocks.push_back(RandomBlock(rng, 60, 4, 0.9, 0.05, Steps::kAny));
  blocks.push_back(RandomBlock(rng, 3000, 8, 0.05, 0.01, Steps::kSmall));
  return blocks;
}

TEST(DecodeHostile, EveryTruncationIsCorrupt) {
  const auto blocks = SmallBlocks();
  for (const Coding coding : kEveryCoding) {
    const Part part = EncodePart(coding, blocks);
    const auto decoder = Decoder::Open(part.tables);
    ASSERT_TRUE(decoder);
    for (size_t i = 0; i < blocks.size(); ++i) {
      for (size_t size = 0; size < part.streams[i].size(); ++size) {
        const Bytes cut(part.streams[i].begin(), part.streams[i].begin() + static_cast<ptrdiff_t>(size));
        EXPECT_FALSE(Decode(*decoder, coding, blocks[i], cut)) << i << " at " << size;
      }
    }
    for (size_t size = 1; size < part.tables.size(); ++size) {
      EXPECT_FALSE(Decoder::Open(ByteSpan(part.tables).first(size))) << size;
    }
  }
}

TEST(DecodeHostile, TrailingByteIsCorrupt) {
  const auto blocks = SmallBlocks();
  for (const Coding coding : kEveryCoding) {
    Part part = EncodePart(coding, blocks);
    const auto decoder = Decoder::Open(part.tables);
    ASSERT_TRUE(decoder);
    for (size_t i = 0; i < blocks.size(); ++i) {
      part.streams[i].push_back(0);
      EXPECT_FALSE(Decode(*decoder, coding, blocks[i], part.streams[i])) << i;
    }
    part.tables.push_back(0);
    EXPECT_FALSE(Decoder::Open(part.tables));
  }
}

TEST(DecodeHostile, EveryFlippedByteIsCorruptOrValid) {
  const auto blocks = SmallBlocks();
  for (const Coding coding : kEveryCoding) {
    const Part part = EncodePart(coding, blocks);
    const auto decoder = Decoder::Open(part.tables);
    ASSERT_TRUE(decoder);
    for (size_t i = 0; i < blocks.size(); ++i) {
      Bytes stream = part.streams[i];
      for (uint8_t& byte : stream) {
        for (const uint8_t mask : {0x01, 0x10, 0x80, 0xFF}) {
          byte ^= mask;
          ExpectCorruptOrValid(*decoder, coding, blocks[i], stream);
          byte ^= mask;
        }
      }
    }
    Bytes tables = part.tables;
    for (uint8_t& byte : tables) {
      for (const uint8_t mask : {0x01, 0x10, 0x80, 0xFF}) {
        byte ^= mask;
        const auto other = Decoder::Open(tables);
        for (size_t i = 0; other && i < blocks.size(); ++i) {
          ExpectCorruptOrValid(*other, coding, blocks[i], part.streams[i]);
        }
        byte ^= mask;
      }
    }
  }
}

TEST(DecodeHostile, WrongCountsAreCorruptOrValid) {
  const auto blocks = SmallBlocks();
  for (const Coding coding : kEveryCoding) {
    const Part part = EncodePart(coding, blocks);
    const auto decoder = Decoder::Open(part.tables);
    ASSERT_TRUE(decoder);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto changed = static_cast<uint32_t>(blocks[i].changed.size());
      const auto uncertain = static_cast<uint32_t>(blocks[i].uncertain.size());
      for (const uint32_t c : {0u, 1u, changed - 1, changed, changed + 1, 2 * changed}) {
        for (const uint32_t u : {0u, uncertain - 1, uncertain, uncertain + 1, changed}) {
          for (const uint32_t width : {1u, 2u, 4u, 8u}) {
            for (const uint32_t elements : {blocks[i].elements, blocks[i].elements / 2, 1u << 21}) {
              const auto decoded = decoder->Decode(coding, elements, width, c, u, part.streams[i]);
              if (decoded && !decoded->ranked) ExpectValid(*decoded, elements, width);
            }
          }
        }
      }
    }
  }
}

TEST(DecodeHostile, ImpossibleShapesAreCorrupt) {
  const auto decoder = Decoder::Open({});
  ASSERT_TRUE(decoder);
  const Bytes stream{0, 1, 2, 3, 4, 5, 6, 7};
  for (const Coding coding : kEveryCoding) {
    EXPECT_FALSE(decoder->Decode(coding, 10, 2, 11, 0, stream));
    EXPECT_FALSE(decoder->Decode(coding, 10, 2, 6, 5, stream));
    EXPECT_FALSE(decoder->Decode(coding, 10, 2, ~0u, 2, stream));
    EXPECT_FALSE(decoder->Decode(coding, ~0u, 2, ~0u, 0, stream));
    EXPECT_FALSE(decoder->Decode(coding, (1u << 21) + 1, 2, 1, 0, stream));
    EXPECT_FALSE(decoder->Decode(coding, 10, 3, 1, 0, stream));
    EXPECT_FALSE(decoder->Decode(coding, 10, 0, 1, 0, stream));
  }
  EXPECT_FALSE(decoder->Decode(Coding::kDense, 10, 2, 1, 0, stream));
  EXPECT_FALSE(decoder->Decode(Coding{4}, 10, 2, 1, 0, stream));
}

// Huge counts cost time and memory in proportion to themselves only, and can't be claimed by a block.
TEST(DecodeHostile, LargestCountsWithoutBytes) {
  const auto decoder = Decoder::Open({});
  ASSERT_TRUE(decoder);
  for (const uint8_t form : {0, 1, 2, 255}) {
    const Bytes stream{form};
    EXPECT_FALSE(decoder->Decode(Coding::kStep, 1 << 21, 8, 1 << 21, 0, stream));
    EXPECT_FALSE(decoder->Decode(Coding::kStep, 1 << 21, 8, 0, 1 << 21, stream));
    EXPECT_FALSE(decoder->Decode(Coding::kAbsolute, 1 << 21, 8, 1 << 21, 0, stream));
  }
}

TEST(DecodeHostile, ForeignAndEmptyTables) {
  const auto blocks = SmallBlocks();
  const auto none = Decoder::Open({});
  ASSERT_TRUE(none);
  for (const Coding coding : kEveryCoding) {
    const Part part = EncodePart(coding, blocks);
    const auto foreign =
        Decoder::Open(EncodePart(coding == Coding::kStep ? Coding::kAbsolute : Coding::kStep, blocks).tables);
    ASSERT_TRUE(foreign);
    for (size_t i = 0; i < blocks.size(); ++i) {
      ExpectCorruptOrValid(*foreign, coding, blocks[i], part.streams[i]);
      ExpectCorruptOrValid(*none, coding, blocks[i], part.streams[i]);
      const bool needs_table = part.streams[i][0] >= 2;
      EXPECT_TRUE(!needs_table || !Decode(*none, coding, blocks[i], part.streams[i]));
    }
  }
}

TEST(DecodeHostile, RandomBytes) {
  const auto blocks = SmallBlocks();
  SeededRng rng(12);
  for (const Coding coding : kEveryCoding) {
    const auto decoder = Decoder::Open(EncodePart(coding, blocks).tables);
    ASSERT_TRUE(decoder);
    for (int round = 0; round < 50'000; ++round) {
      Bytes stream(rng.Next() % 64);
      for (uint8_t& byte : stream) byte = static_cast<uint8_t>(rng.Next());
      if (!stream.empty()) stream[0] %= 6;
      const auto elements = static_cast<uint32_t>(rng.Next() % 300);
      const auto changed = static_cast<uint32_t>(rng.Next() % 40);
      const auto uncertain = static_cast<uint32_t>(rng.Next() % 10);
      const uint32_t width = 1u << rng.Next() % 4;
      const auto decoded = decoder->Decode(coding, elements, width, changed, uncertain, stream);
      if (decoded && !decoded->ranked) ExpectValid(*decoded, elements, width);
      const auto opened = Decoder::Open(stream);
      EXPECT_TRUE(opened || opened.error().code() == Code::kCorrupt);
    }
  }
}

}  // namespace
}  // namespace deltawire::codec
