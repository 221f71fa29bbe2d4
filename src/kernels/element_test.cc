// Element functions over whole value ranges, against definitions that share nothing with them.
#include "kernels/element.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <vector>

namespace deltawire::kernels {
namespace {

// Low parts that decide a rounding of `bits` dropped bits: both sides of nothing, of the tie, of everything.
std::vector<uint32_t> LowParts(int bits) {
  const uint32_t half = 1u << (bits - 1), all = (1u << bits) - 1;
  return {0, 1, half - 1, half, half + 1, all};
}

double AsDouble(uint32_t f32_bits) { return static_cast<double>(std::bit_cast<float>(f32_bits)); }

TEST(Bf16FromF32Test, NearestEvenForEveryUpperHalf) {
  for (uint32_t upper = 0; upper <= 0xFFFF; ++upper) {
    for (uint32_t low : LowParts(16)) {
      const uint32_t bits = upper << 16 | low;
      const uint16_t rounded = Bf16FromF32(bits);
      if ((bits & 0x7FFFFFFF) > 0x7F800000) {
        ASSERT_EQ(rounded, 0xFFFF) << std::hex << bits;
        continue;
      }
      if ((upper & 0x7FFF) >= 0x7F7F) {  // the largest finite value and infinity
        ASSERT_EQ(rounded, low >= 0x8000 && (upper & 0x7FFF) == 0x7F7F ? upper + 1 : upper)
            << std::hex << bits;
        continue;
      }
      const double below = AsDouble(bits) - AsDouble(upper << 16),
                   above = AsDouble((upper + 1) << 16) - AsDouble(bits);
      const bool up = std::fabs(above) < std::fabs(below) || (above == below && (upper & 1) != 0);
      ASSERT_EQ(rounded, up ? upper + 1 : upper) << std::hex << bits;
    }
  }
}

__attribute__((target("f16c"))) uint16_t HardwareF16(float value) {
  return static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
}
__attribute__((target("f16c"))) uint32_t HardwareF32(uint16_t bits) {
  return std::bit_cast<uint32_t>(_cvtsh_ss(bits));
}

TEST(F16Test, AgreesWithTheHardware) {
  if (!__builtin_cpu_supports("f16c")) GTEST_SKIP() << "this processor has no F16C";
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    ASSERT_EQ(F32FromF16(static_cast<uint16_t>(bits)), HardwareF32(static_cast<uint16_t>(bits)))
        << std::hex << bits;
  }
  for (uint32_t upper = 0; upper < 1u << 19; ++upper) {
    for (uint32_t low : LowParts(13)) {
      const uint32_t bits = upper << 13 | low;
      ASSERT_EQ(F16FromF32(bits), HardwareF16(std::bit_cast<float>(bits))) << std::hex << bits;
    }
  }
  // Below 2^-14 more bits are dropped: every tie and its neighbours.
  for (uint32_t magnitude = 0x32000000; magnitude < 0x39000000; magnitude += 0x100) {
    for (uint32_t offset : {0u, 1u, 0xFFu}) {
      const uint32_t bits = magnitude + offset;
      ASSERT_EQ(F16FromF32(bits), HardwareF16(std::bit_cast<float>(bits))) << std::hex << bits;
    }
  }
}

TEST(OrdinalTest, IsMonotoneAndItsOwnInverse) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto x = static_cast<uint16_t>(bits);
    ASSERT_EQ(Ordinal(Ordinal(x)), x);
    const int expected = x < 0x8000 ? x : -1 - (x & 0x7FFF);
    ASSERT_EQ(static_cast<int16_t>(Ordinal(x)), expected);
  }
  EXPECT_EQ(static_cast<int64_t>(Ordinal(uint64_t{1} << 63)), -1);
  EXPECT_EQ(static_cast<int8_t>(Ordinal(uint8_t{0x80})), -1);
  EXPECT_EQ(static_cast<int32_t>(Ordinal(uint32_t{0x80000000})), -1);
}

TEST(StepsTest, EveryPatternAgainstAGridOfOthers) {
  std::vector<uint16_t> before(65536), after(65536), steps(65536), back(65536);
  const HostTable* tables[] = {&RefHostTable(), &CpuHostTable()};
  for (uint32_t shift = 0; shift < 65536; shift += 257) {
    for (uint32_t i = 0; i < 65536; ++i) {
      before[i] = static_cast<uint16_t>(i);
      after[i] = static_cast<uint16_t>(i + shift);
    }
    for (const HostTable* table : tables) {
      table->steps(2, before.data(), after.data(), 65536, steps.data());
      for (uint32_t i = 0; i < 65536; ++i) {
        const int32_t from = i < 0x8000 ? static_cast<int32_t>(i) : -1 - static_cast<int32_t>(i & 0x7FFF);
        const int32_t to = after[i] < 0x8000 ? after[i] : -1 - (after[i] & 0x7FFF);
        ASSERT_EQ(steps[i], static_cast<uint16_t>(to - from)) << table->name << " " << i << " " << after[i];
      }
      table->apply_steps(2, before.data(), steps.data(), 65536, back.data());
      ASSERT_EQ(back, after) << table->name;
    }
  }
}

TEST(SetZTest, NegativeZeroAndTinyMagnitudes) {
  uint32_t members = 0;
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const double magnitude = std::fabs(AsDouble((bits & 0x7FFF) << 16));
    const bool expected = bits == 0x8000 || (magnitude != 0 && magnitude <= AsDouble(0x08000000));
    ASSERT_EQ(InSetZ(static_cast<uint16_t>(bits)), expected) << std::hex << bits;
    members += expected;
  }
  EXPECT_EQ(members, 4097u);
}

}  // namespace
}  // namespace deltawire::kernels
