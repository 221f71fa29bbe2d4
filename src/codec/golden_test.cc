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
  ExpectGolden({Coding::kStep, "036908223c78a1c18577574084082f34e000efd18108946082087c6000",
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
  ExpectGolden({Coding::kStep, "00", "01c0c407bebb78028b010b04030201"}, block);
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
  ExpectGolden({Coding::kAbsolute, "00", "00040c00254a6fb9de03284d7297bce1062b509abf"}, block);
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
  ExpectGolden({Coding::kAbsolute, "042420086c6478a1fde717813ebc",
                "02030022d03600f59b3ff1bb6bdd68b815dc7c095599ec7d61f97665130078000208122032486280a2c8f2205288"
                "c20a4c92dc2a7cd23694f65cc63eb026a028aa30ba52e47a1ebc5e0eb86622d8925a1ce2b68460361af8dacab4ac"
                "9e9e98a0a2b2bcd4e6062a48749ace063878b2fa468ce0388aea4eac1888f26ae666e068f48418ffffffffffffff"
                "ff03"},
               block);
}

}  // namespace
}  // namespace deltawire::codec
