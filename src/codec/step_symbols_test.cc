// The grouped kernels against the loops that define the result.
#include "codec/step_symbols.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace deltawire::codec {
namespace {

constexpr uint32_t kElements = 1 << 21;

struct Entries {
  std::vector<uint32_t> positions;
  Bytes steps;  // 16-bit
};

// Gaps below 2^gap_bits as long as they fit; one step in `escapes` is not +-1.
Entries Random(SeededRng& rng, size_t count, unsigned gap_bits, uint64_t escapes) {
  Entries out;
  uint64_t next = 0;
  while (out.positions.size() < count) {
    const uint64_t left = kElements - next - (count - out.positions.size());
    const uint64_t gap = std::min(left, rng.Next() % (uint64_t{1} << gap_bits));
    out.positions.push_back(static_cast<uint32_t>(next + gap));
    next += gap + 1;
    const auto any = static_cast<uint16_t>(rng.Next());
    AppendLe(rng.Next() % escapes == 0 ? any : static_cast<uint16_t>(any % 2 == 0 ? 1 : -1), out.steps);
  }
  return out;
}

struct Split {
  std::vector<uint8_t> symbols;
  std::vector<uint8_t> escapes = {7};  // appended to
  Bytes bits;

  bool operator==(const Split&) const = default;
};
Split SplitWith(const Entries& entries, const kernels::SymbolGroups& groups) {
  Split out;
  out.symbols.resize(entries.positions.size());
  BitWriter bits;
  bits.Put(5, 3);  // not at the start of a byte
  SplitSteps(entries.positions, entries.steps, 2, out.symbols, out.escapes, bits, groups);
  bits.AppendTo(out.bits);
  return out;
}

struct Joined {
  bool valid = false;
  bool used_up = false;
  std::vector<uint32_t> positions;
  Bytes steps;

  bool operator==(const Joined&) const = default;
};
Joined JoinWith(const Split& split, ByteSpan bits, uint32_t elements, const kernels::SymbolGroups& groups) {
  Joined out;
  out.positions.resize(split.symbols.size());
  out.steps.resize(2 * split.symbols.size());
  BitReader reader(bits);
  reader.Read(3);
  out.valid = JoinSteps(split.symbols, std::span(split.escapes).subspan(1), elements, 2, reader,
                        out.positions, out.steps, groups);
  out.used_up = reader.UsedUpExactly();
  return out;
}

TEST(StepSymbols, GroupsGiveWhatTheLoopsGive) {
  SeededRng rng(12);
  for (const size_t count : {0, 1, 15, 16, 17, 31, 32, 33, 64, 100, 1000, 4099}) {
    for (const unsigned gap_bits : {0u, 1u, 5u, 9u, 21u}) {
      for (const uint64_t escapes : {1, 2, 10, 1000}) {
        SCOPED_TRACE(testing::Message() << count << " entries, gaps below 2^" << gap_bits << ", one step of "
                                        << escapes << " escapes");
        const Entries entries = Random(rng, count, gap_bits, escapes);
        const Split split = SplitWith(entries, kernels::NoSymbolGroups());
        ASSERT_EQ(SplitWith(entries, kernels::CpuSymbolGroups()), split);
        const Joined joined = JoinWith(split, split.bits, kElements, kernels::NoSymbolGroups());
        ASSERT_TRUE(joined.valid && joined.used_up);
        ASSERT_EQ(joined.positions, entries.positions);
        ASSERT_EQ(joined.steps, entries.steps);
        ASSERT_EQ(JoinWith(split, split.bits, kElements, kernels::CpuSymbolGroups()), joined);
      }
    }
  }
}

// Positions beyond 2^32 come from symbols that no block has; bits that are missing read as zeros.
TEST(StepSymbols, GroupsJudgeWrongInputAsTheLoopsDo) {
  SeededRng rng(13);
  const Entries entries = Random(rng, 200, 9, 10);
  Split split = SplitWith(entries, kernels::NoSymbolGroups());
  for (size_t size = 0; size < split.bits.size(); ++size) {
    const Bytes cut(split.bits.begin(), split.bits.begin() + static_cast<ptrdiff_t>(size));  // its own memory
    ASSERT_EQ(JoinWith(split, cut, kElements, kernels::CpuSymbolGroups()),
              JoinWith(split, cut, kElements, kernels::NoSymbolGroups()))
        << size;
  }
  split.symbols.assign(5000, kGapBuckets - 1);
  split.escapes.resize(1);
  const Bytes bits(5000 * 19 / 8 + 100, 0xFF);
  const Joined joined = JoinWith(split, bits, kElements, kernels::CpuSymbolGroups());
  EXPECT_FALSE(joined.valid);
  EXPECT_EQ(joined, JoinWith(split, bits, kElements, kernels::NoSymbolGroups()));
}

}  // namespace
}  // namespace deltawire::codec
