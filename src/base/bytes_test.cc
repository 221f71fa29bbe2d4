#include "base/bytes.h"

#include <gtest/gtest.h>

namespace deltawire {
namespace {

TEST(Bytes, HexRoundTripsAndRefusesOddOrForeignDigits) {
  const Bytes bytes = {0x00, 0x7f, 0xff};
  EXPECT_EQ(ToHex(bytes), "007fff");
  EXPECT_EQ(FromHex("007FfF"), bytes);
  EXPECT_FALSE(FromHex("0"));
  EXPECT_FALSE(FromHex("0g"));
}

TEST(Bytes, CheckedArithmeticNamesOverflow) {
  EXPECT_EQ(CheckedAdd(1, 2), 3u);
  EXPECT_FALSE(CheckedAdd(UINT64_MAX, 1));
  EXPECT_FALSE(CheckedMul(uint64_t{1} << 63, 2));
}

}  // namespace
}  // namespace deltawire
