#include "codec/codec.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "codec/ordinal.h"
#include "codec/test_block.h"

namespace deltawire::codec {
namespace {

// Encodes the blocks as one part, decodes them from the serialised tables, and compares with what went in,
// trying both candidates as the base of each uncertain element.
void ExpectRoundTrip(Coding coding, std::span<const TestBlock> blocks) {
  const Part part = EncodePart(coding, blocks);
  const auto decoder = Decoder::Open(part.tables);
  ASSERT_TRUE(decoder) << decoder.error().message();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const TestBlock& block = blocks[i];
    SCOPED_TRACE(fmt::format("block {}: {} of {} changed, {} uncertain, width {}, coding {}", i,
                             block.changed.size(), block.elements, block.uncertain.size(), block.width,
                             static_cast<int>(coding)));
    const auto decoded = Decode(*decoder, coding, block, part.streams[i]);
    ASSERT_TRUE(decoded) << decoded.error().message();
    ExpectDecodes(coding, block, *decoded);
    EXPECT_EQ(decoded->populations, part.populations[i]);
    if (coding != Coding::kClass || block.uncertain.empty()) continue;
    const auto upper = Decode(*decoder, coding, block, part.streams[i], block.OldBlock(1));
    ASSERT_TRUE(upper) << upper.error().message();
    ExpectDecodes(coding, block, *upper);
  }
}

TEST(Codec, RoundTripOfEveryWidthAndDensity) {
  SeededRng rng(1);
  for (const Coding coding : kEveryCoding) {
    for (const uint32_t width : {1u, 2u, 4u, 8u}) {
      std::vector<TestBlock> blocks;
      for (const double density : {1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.51, 0.9, 0.999, 1.0}) {
        blocks.push_back(RandomBlock(rng, 30'000, width, density, 0, Steps::kSmall));
        blocks.push_back(RandomBlock(rng, 5'000, width, density, 0.01, Steps::kAny));
      }
      ExpectRoundTrip(coding, blocks);
    }
  }
}

TEST(Codec, RoundTripOfMixedWidthsInOnePart) {
  SeededRng rng(2);
  std::vector<TestBlock> blocks;
  for (const uint32_t width : {2u, 4u, 1u, 8u, 2u}) {
    blocks.push_back(RandomBlock(rng, 20'000, width, 0.02, 0.001, Steps::kSmall));
  }
  for (const Coding coding : kEveryCoding) ExpectRoundTrip(coding, blocks);
}

TEST(Codec, RoundTripOfALargestBlock) {
  SeededRng rng(3);
  const TestBlock blocks[] = {RandomBlock(rng, 1 << 21, 2, 0.02, 1e-4, Steps::kSmall)};
  for (const Coding coding : kEveryCoding) ExpectRoundTrip(coding, blocks);
}

TEST(Codec, RoundTripAcrossEveryLaneCount) {
  SeededRng rng(4);
  std::vector<TestBlock> blocks;
  for (const uint32_t changed : {1u, 2u, 3u, 100u, 1023u, 1024u, 1025u, 4095u, 4096u, 8191u, 8193u, 16383u,
                                 16384u, 16385u, 16399u, 40'001u}) {
    blocks.push_back(RandomBlock(rng, 100'000, 2, changed / 100'000.0, 0, Steps::kSmall));
  }
  for (const Coding coding : kEveryCoding) ExpectRoundTrip(coding, blocks);
}

TEST(Codec, FirstAndLastElementOfALargestBlock) {
  TestBlock block;
  block.elements = 1 << 21;
  block.width = 2;
  block.changed = {0, (1 << 21) - 1};
  block.old_bits = {0x80, 0x3F, 0x80, 0x3F};
  block.new_bits = {0x81, 0x3F, 0x7F, 0x3F};
  for (const Coding coding : kEveryCoding) {
    ExpectRoundTrip(coding, {&block, 1});
    // Enough for tables to pay; a base of class costs more time than its few changes.
    std::vector<TestBlock> many(coding == Coding::kClass ? 8 : 200, block);
    ExpectRoundTrip(coding, many);
  }
}

TEST(Codec, EmptyBlockHasAnEmptyStream) {
  TestBlock empty;
  empty.elements = 1000;
  empty.width = 2;
  TestBlock nothing = empty;
  nothing.elements = 0;
  for (const Coding coding : kEveryCoding) {
    const TestBlock blocks[] = {empty, nothing};
    ExpectRoundTrip(coding, blocks);
    EXPECT_TRUE(EncodePart(coding, blocks).streams[0].empty());
    EXPECT_TRUE(EncodePart(coding, {}).tables.empty());
  }
}

TEST(Codec, OneChangeTakesAFewBytes) {
  TestBlock block;
  block.elements = 1 << 21;
  block.width = 2;
  block.changed = {123'456};
  block.old_bits = {0x80, 0x3F};
  block.new_bits = {0x81, 0x3F};
  const Part part = EncodePart(Coding::kStep, {&block, 1});
  EXPECT_EQ(part.streams[0].size(), 5u);  // form, three bytes of position, the step
  EXPECT_EQ(part.tables.size(), 0u);
  EXPECT_EQ(EncodePart(Coding::kAbsolute, {&block, 1}).streams[0].size(), 6u);
}

TEST(Codec, AllChangedIsNoLargerThanItsBits) {
  SeededRng rng(5);
  for (const Coding coding : kEveryCoding) {
    for (const uint32_t width : {1u, 2u, 4u, 8u}) {
      const TestBlock block = RandomBlock(rng, 10'000, width, 1.0, 0, Steps::kAny);
      const Part part = EncodePart(coding, {&block, 1});
      EXPECT_LE(part.streams[0].size() + part.tables.size(), 10'000u * width + 16) << width;
      const TestBlock hole = RandomBlock(rng, 10'000, width, 0.9999, 0, Steps::kAny);
      const Part holed = EncodePart(coding, {&hole, 1});
      EXPECT_LE(holed.streams[0].size() + holed.tables.size(), 10'000u * width + 16) << width;
    }
  }
}

// -0 and +0 are neighbours in ordinal order; NaN payloads and sign changes are steps like others.
TEST(Codec, SpecialValuesAndLargestSteps) {
  const std::pair<uint16_t, uint16_t> pairs[] = {
      {0x0000, 0x8000}, {0x8000, 0x0000}, {0x3F80, 0xBF80}, {0x7FC0, 0xFFC1}, {0x7F80, 0xFF80},
      {0xFFFF, 0x7FFF}, {0x7FFF, 0xFFFF}, {0x0000, 0xFFFF}, {0x0001, 0x8001}, {0x7FFF, 0x0000},
      {0xFFFF, 0x8000}, {0x4000, 0xC000}, {0x8000, 0x7FFF}, {0x3F80, 0x3F80}};
  TestBlock block;
  block.elements = 500;
  block.width = 2;
  for (uint32_t repeat = 0; repeat < 20; ++repeat) {
    for (size_t i = 0; i < std::size(pairs); ++i) {
      block.changed.push_back(static_cast<uint32_t>(repeat * std::size(pairs) + i));
      AppendLe(pairs[i].first, block.old_bits);
      AppendLe(pairs[i].second, block.new_bits);
    }
  }
  for (const Coding coding : kEveryCoding) ExpectRoundTrip(coding, {&block, 1});
}

TEST(Codec, LargestStepsOfEveryWidth) {
  for (const uint32_t width : {1u, 2u, 4u, 8u}) {
    TestBlock block;
    block.elements = 4000;
    block.width = width;
    WithWidth(width, [&](auto zero) {
      using U = decltype(zero);
      constexpr U kTop = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
      const U steps[] = {kTop, static_cast<U>(kTop - 1), static_cast<U>(kTop + 1), 2, static_cast<U>(-2), 3};
      for (uint32_t i = 0; i < 1200; ++i) {
        const U before = static_cast<U>(i * 0x9E3779B97F4A7C15u);
        block.changed.push_back(3 * i);
        AppendLe(before, block.old_bits);
        AppendLe(Ordinal(static_cast<U>(Ordinal(before) + steps[i % std::size(steps)])), block.new_bits);
      }
    });
    for (const Coding coding : kEveryCoding) ExpectRoundTrip(coding, {&block, 1});
  }
}

TEST(Codec, UncertainElementsOfBothSpans) {
  SeededRng rng(6);
  std::vector<TestBlock> blocks;
  for (const double density : {0.0, 1e-3, 0.3}) {
    for (const double uncertain : {1e-4, 1e-2, 0.5}) {
      blocks.push_back(RandomBlock(rng, 20'000, 2, density, uncertain, Steps::kSmall));
    }
  }
  for (const Coding coding : kEveryCoding) ExpectRoundTrip(coding, blocks);
}

// Eight blocks and about 10 000 changes, as in a small part: tables, states and forms together stay within 3
// % of the entropy of independent changes with fair signs.
TEST(Codec, SmallPartStaysNearItsEntropy) {
  SeededRng rng(9);
  std::vector<TestBlock> blocks;
  double bits = 0;
  for (const double density : {0.001, 0.002, 0.002, 0.002, 0.003, 0.004, 0.006, 0.01}) {
    blocks.push_back(RandomBlock(rng, 330'000, 2, density, 0, Steps::kUnit));
    const auto changed = static_cast<double>(blocks.back().changed.size());
    const double share = changed / 330'000;
    bits += 330'000 * (-share * std::log2(share) - (1 - share) * std::log2(1 - share)) + changed;
  }
  const Part part = EncodePart(Coding::kStep, blocks);
  size_t size = part.tables.size();
  for (const Bytes& stream : part.streams) size += stream.size();
  EXPECT_LT(static_cast<double>(8 * size), 1.03 * bits);
}

// 12 to 14 bits each: a gap of about 10^4 (13.3 + 1.44 bits at most) and two bits.
TEST(Codec, UncertainElementsAreCheap) {
  SeededRng rng(7);
  TestBlock with = RandomBlock(rng, 1 << 21, 2, 0.004, 1e-4, Steps::kSmall);
  for (uint8_t& span : with.uncertain_span) span = 1;
  for (size_t i = 0; i < with.uncertain.size(); ++i) {
    StoreLe(Ordinal(static_cast<uint16_t>(Ordinal(with.uncertain_low[i]) + 1)),
            with.uncertain_new.data() + 2 * i);
  }
  TestBlock without = with;
  without.uncertain.clear();
  without.uncertain_low.clear();
  without.uncertain_span.clear();
  without.uncertain_new.clear();
  const auto size = [](const TestBlock& block) {
    const Part part = EncodePart(Coding::kStep, {&block, 1});
    return part.tables.size() + part.streams[0].size();
  };
  EXPECT_LT(8 * (size(with) - size(without)), 18 * with.uncertain.size());
}

// A joint block of several tensors: the same bytes and the same places as from one piece of memory.
TEST(Codec, ABlockInPiecesIsTheBlock) {
  SeededRng rng(11);
  for (const uint32_t width : {1u, 2u, 4u, 8u}) {
    const TestBlock block = RandomBlock(rng, 30'000, width, 0.02, 0.0005, Steps::kSmall);
    const Bytes new_block = block.NewBlock();
    const Bytes old_block = block.OldBlock(0);
    const auto cut = [&](ByteSpan whole) {
      std::vector<ByteSpan> pieces;
      for (size_t at = 0; at < whole.size();) {
        // Empty ones, single elements, and some longer than what kernels take at a time.
        constexpr uint64_t kLongest[] = {1, 2, 100, 9000};
        const uint64_t count = rng.Next() % kLongest[rng.Next() % 4];
        pieces.push_back(whole.subspan(at, std::min<size_t>(count * width, whole.size() - at)));
        at += pieces.back().size();
      }
      return pieces;
    };
    Encoder encoder(Coding::kClass, &kernels::CpuClassTable());
    encoder.SampleBase(width, block.elements, new_block);
    encoder.SampleChanges(block.View());
    encoder.ChooseClasses(8);
    PreparedBlock whole;
    ASSERT_TRUE(encoder.Prepare(block.View(), new_block, whole));
    encoder.Survey(whole);
    encoder.ChooseTables();
    Bytes expected;
    std::vector<uint32_t> populations;
    ASSERT_TRUE(encoder.Encode(block.View(), whole, expected, populations));
    ASSERT_FALSE(populations.empty());
    const auto decoder = Decoder::Open(encoder.tables());
    ASSERT_TRUE(decoder);
    const auto decoded =
        decoder->Decode(Coding::kClass, block.elements, width, static_cast<uint32_t>(block.changed.size()),
                        static_cast<uint32_t>(block.uncertain.size()), expected);
    ASSERT_TRUE(decoded);
    for (int round = 0; round < 20; ++round) {
      PreparedBlock prepared;
      ASSERT_TRUE(encoder.Prepare(block.View(), cut(new_block), prepared));
      Bytes stream;
      ASSERT_TRUE(encoder.Encode(block.View(), prepared, stream, populations));
      EXPECT_EQ(stream, expected);
      const auto placed = Place(kernels::CpuClassTable(), cut(old_block), {}, *decoded);
      ASSERT_TRUE(placed) << placed.error().message();
      ExpectDecodes(Coding::kClass, block, *placed);
    }
  }
}

TEST(Codec, UnsurveyedSymbolsAreOurBug) {
  SeededRng rng(8);
  const TestBlock seen = RandomBlock(rng, 20'000, 2, 0.02, 0, Steps::kUnit);
  TestBlock unseen = seen;
  for (size_t i = 0; i < unseen.new_bits.size(); ++i) unseen.new_bits[i] ^= 0x55;
  for (const Coding coding : {Coding::kStep, Coding::kClass}) {
    Encoder encoder(coding, &kernels::CpuClassTable());
    PreparedBlock prepared;
    ASSERT_TRUE(encoder.Prepare(seen.View(), seen.NewBlock(), prepared));
    encoder.Survey(prepared);
    encoder.ChooseTables();
    PreparedBlock other;
    ASSERT_TRUE(encoder.Prepare(unseen.View(), unseen.NewBlock(), other));
    Bytes out{1, 2, 3};
    std::vector<uint32_t> populations;
    const Status status = encoder.Encode(unseen.View(), other, out, populations);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kInternal);
    EXPECT_EQ(out.size(), 3u);
  }
}

TEST(Codec, EncodeBeforePrepareAndChooseTablesIsOurBug) {
  Encoder encoder(Coding::kStep);
  Bytes out;
  std::vector<uint32_t> populations;
  EXPECT_EQ(encoder.Encode({}, {}, out, populations).error().code(), Code::kInternal);
  PreparedBlock prepared;
  ASSERT_TRUE(encoder.Prepare({}, ByteSpan(), prepared));
  EXPECT_EQ(encoder.Encode({}, prepared, out, populations).error().code(), Code::kInternal);
}

TEST(Codec, ClassCodingNeedsTheWholeBlock) {
  SeededRng rng(10);
  const TestBlock block = RandomBlock(rng, 1000, 2, 0.1, 0, Steps::kUnit);
  const Encoder encoder(Coding::kClass, &kernels::CpuClassTable());
  PreparedBlock prepared;
  const Bytes bits(2000);
  const ByteSpan halves[] = {ByteSpan(bits).first(999), ByteSpan(bits).subspan(999)};
  for (const Status& status : {encoder.Prepare(block.View(), ByteSpan(bits).first(1998), prepared),
                               encoder.Prepare(block.View(), halves, prepared)}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace deltawire::codec
