#include "format/binary.h"

#include <gtest/gtest.h>

namespace deltawire::format {
namespace {

TEST(Binary, VarintsRoundTrip) {
  for (const uint64_t value : {uint64_t{0}, uint64_t{127}, uint64_t{128}, uint64_t{16383}, uint64_t{16384},
                               uint64_t{1} << 63, UINT64_MAX}) {
    Bytes bytes;
    AppendVarint(value, bytes);
    BinaryReader reader(bytes, "test");
    EXPECT_EQ(reader.Varint("v"), value);
    EXPECT_TRUE(reader.End());
  }
}

TEST(Binary, VarintsHaveOneForm) {
  for (const Bytes& bytes :
       {Bytes{0x80, 0x00}, Bytes{0xff, 0x00}, Bytes{0x80, 0x80, 0x00},
        Bytes{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02},
        Bytes{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, Bytes{0x80}, Bytes{}}) {
    BinaryReader reader(bytes, "test");
    const auto value = reader.Varint("v");
    ASSERT_FALSE(value) << ToHex(bytes);
    EXPECT_EQ(value.error().code(), Code::kCorrupt);
  }
}

TEST(Binary, NamesFieldAndOffset) {
  const Bytes bytes = {1, 2, 3};
  BinaryReader reader(bytes, "test");
  EXPECT_EQ(reader.Byte("first"), 1);
  const auto word = reader.U64("word");
  ASSERT_FALSE(word);
  EXPECT_EQ(word.error().message(),
            "test: word at offset 1 needs 8 bytes, 2 are left; the table is cut short");
  EXPECT_FALSE(reader.End());
  EXPECT_FALSE(reader.VarintUpTo(1, "small"));
}

}  // namespace
}  // namespace deltawire::format
