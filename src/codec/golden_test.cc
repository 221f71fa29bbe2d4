// Streams that must decode for ever. tests/reader/test_codings.py holds the same bytes; the first is the
// worked example of docs/formats/codings.md.
#include <gtest/gtest.h>

#include "codec/ordinal.h"
#include "codec/test_block.h"

namespace deltawire::codec {
namespace {

struct Golden {
  Coding coding;
  std::string_view tables;
  std::string_view stream;
};

void ExpectGolden(const Golden& golden, const TestBlock& block) {
  const auto tables = FromHex(golden.tables);
  const auto stream = FromHex(golden.stream);
  ASSERT_TRUE(tables && stream);
  const auto decoder = Decoder::Open(*tables);
  ASSERT_TRUE(decoder) << decoder.error().message();
  const auto decoded = Decode(*decoder, golden.coding, block, *stream);
  ASSERT_TRUE(decoded) << decoded.error().message();
  ExpectDecodes(golden.coding, block, *decoded);
  // The encoder may choose otherwise one day; that it does should be known.
  const Part part = EncodePart(golden.coding, {&block, 1});
  EXPECT_EQ(ToHex(part.tables), golden.tables);
  EXPECT_EQ(ToHex(part.streams[0]), golden.stream);
}

template <class U>
void AddStep(TestBlock& block, uint32_t position, U before, int64_t step) {
  block.changed.push_back(position);
  AppendLe(before, block.old_bits);
  AppendLe(Ordinal(static_cast<U>(Ordinal(before) + static_cast<U>(step))), block.new_bits);
}

TEST(Golden, StepsWithTables) {
  TestBlock block;
  block.elements = 400;
  block.width = 2;
  for (uint32_t i = 0; i < 90; ++i) {
    const int64_t step = i == 29 ? 5 : i == 59 ? -300 : i == 89 ? -32768 : i % 2 == 0 ? 1 : -1;
    AddStep<uint16_t>(block, 4 * i + 3, 0x3F80, step);
  }
  block.uncertain = {1, 42, 397};
  block.uncertain_low = {0x4000, 0, 0x3FFC};
  block.uncertain_span = {1, 0, 1};
  for (const uint16_t bits : {0x4002, 0x3F81, 0x3FFC}) AppendLe(bits, block.uncertain_new);
  ExpectGolden({Coding::kStep, "03006908223c78a1c18577574084082f34e000efd18108946082087c6000",
                "02fbf40d004c42846ad5eddf262b444468806286130019f86302"},
               block);
}

TEST(Golden, StepsAsVarints) {
  TestBlock block;
  block.elements = 1 << 21;
  block.width = 4;
  AddStep<uint32_t>(block, 123'456, 0x3F800000, 1);
  AddStep<uint32_t>(block, (1 << 21) - 1, 0xBF800000, -70);
  block.uncertain = {5};
  block.uncertain_low = {0};
  block.uncertain_span = {0};
  AppendLe<uint32_t>(0x01020304, block.uncertain_new);
  ExpectGolden({Coding::kStep, "", "01c0c407bebb78028b010b04030201"}, block);
}

TEST(Golden, AbsentPositionsAndFixedValues) {
  TestBlock block;
  block.elements = 20;
  block.width = 1;
  for (uint32_t i = 0; i < 20; ++i) {
    if (i == 4 || i == 17) continue;
    block.changed.push_back(i);
    block.old_bits.push_back(0);
    block.new_bits.push_back(static_cast<uint8_t>(37 * i));
  }
  ExpectGolden({Coding::kAbsolute, "", "00040c00254a6fb9de03284d7297bce1062b509abf"}, block);
}

TEST(Golden, AbsoluteWithOneCodedPlane) {
  TestBlock block;
  block.elements = 600;
  block.width = 2;
  for (uint32_t i = 0; i < 100; ++i) {
    block.changed.push_back(5 * i + i % 3);
    AppendLe<uint16_t>(0, block.old_bits);
    AppendLe(static_cast<uint16_t>(0x3F00 + i * i % 251), block.new_bits);
  }
  ExpectGolden({Coding::kAbsolute, "04002420086c6478a1fde717813ebc",
                "02030022d03600f59b3ff1bb6bdd68b815dc7c095599ec7d61f97665130078000208122032486280a2c8f2205288"
                "c20a4c92dc2a7cd23694f65cc63eb026a028aa30ba52e47a1ebc5e0eb86622d8925a1ce2b68460361af8dacab4ac"
                "9e9e98a0a2b2bcd4e6062a48749ace063878b2fa468ce0388aea4eac1888f26ae666e068f48418ffffffffffffff"
                "ff03"},
               block);
}

// Every element whose exponent is at most 115 changed, and one of 97 of the others: classes tell them apart.
TEST(Golden, Classes) {
  TestBlock block;
  block.elements = 4096;
  block.width = 2;
  uint32_t listed = 0;
  for (uint32_t i = 0; i < block.elements; ++i) {
    const auto before = static_cast<uint16_t>(TestBlock::Filler(i, 2));
    if ((before >> 7 & 0xFF) > 115 && i % 97 != 0) continue;
    ++listed;
    AddStep<uint16_t>(block, i, before, listed % 50 == 0 ? 1000 : listed % 3 == 0 ? -1 : 1);
  }
  block.uncertain = {10, 4000};
  block.uncertain_low = {0x3C00, 0};
  block.uncertain_span = {1, 0};
  for (const uint16_t bits : {0x3C01, 0x0001}) AppendLe(bits, block.uncertain_new);
  ExpectGolden({Coding::kClass,
                "0401027402033f3e22fc77071168c3141420b09040075e68c007afac44e0a321e0a3858f0632b042023ef8",
                "022a6c12950002b71e721baf7556b7e54906f3043282b8749e2db4dea031d8d82111112001e22322224220222222"
                "4002422202421e5b99030000"},
               block);
}

// Every other element of a short block: a bit an element is smaller than a gap each.
TEST(Golden, Bitmap) {
  TestBlock block;
  block.elements = 20;
  block.width = 2;
  for (uint32_t i = 0; i < 20; ++i) {
    if (i % 2 != 0 && i != 7) continue;
    block.changed.push_back(i);
    AppendLe<uint16_t>(0, block.old_bits);
    AppendLe(static_cast<uint16_t>(0x9E37 * i), block.new_bits);
  }
  block.changed.pop_back();
  block.old_bits.resize(20);
  block.new_bits.resize(20);
  ExpectGolden({Coding::kAbsolute, "", "fed5550100006e3cdc784ab58153b8f1262e946a02a770e3"}, block);
}

}  // namespace
}  // namespace deltawire::codec
