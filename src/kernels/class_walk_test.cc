// Every Highway target against the reference: odd sizes and addresses, every width and number of classes.
#include "kernels/class_walk.h"

#include <gtest/gtest.h>
#define HWY_WANT_AVX3_DL 1  // as cpu/class_table.cc
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/element.h"

namespace deltawire::kernels {
namespace {

constexpr uint64_t kSeed = 20261130;

std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

struct Case {
  uint32_t width = 2;
  uint32_t elements = 0;
  std::vector<uint8_t> bits;  // with a lead of odd length
  uint32_t lead = 0;
  ClassCuts cuts{};
  std::vector<uint32_t> positions;
  // At these positions the base has other bits than `bits`, mostly; steps tell the elements apart.
  std::vector<uint8_t> old_bits;
  std::vector<uint8_t> steps;

  // The whole base.
  Case Base() const {
    Case base = *this;
    for (size_t i = 0; i < positions.size(); ++i) {
      uint8_t* element = base.bits.data() + lead + uint64_t{positions[i]} * width;
      std::memcpy(element, old_bits.data() + i * width, width);
    }
    return base;
  }
  const uint8_t* at(uint32_t element) const { return bits.data() + lead + uint64_t{element} * width; }
};

// By class.
struct Ranked {
  std::vector<uint32_t> seen;
  std::vector<std::vector<uint32_t>> ranks;
  std::vector<std::vector<uint8_t>> steps;

  bool operator==(const Ranked&) const = default;
};

class ClassWalkTest : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    rng_.seed(kSeed);
    RecordProperty("seed", std::to_string(kSeed));
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  double Uniform() { return std::uniform_real_distribution<>()(rng_); }

  // Keys crowd around few values, as exponents do; some cases have keys of every value, 0 and 255 among them.
  Case Random(uint32_t width, uint32_t elements, uint32_t classes, double listed) {
    Case out;
    out.width = width;
    out.elements = elements;
    out.lead = elements % 7;
    out.bits.resize(out.lead + uint64_t{elements} * width);
    for (uint8_t& byte : out.bits) byte = static_cast<uint8_t>(rng_());
    const bool crowded = rng_() % 4 != 0;
    for (uint32_t i = 0; crowded && i < elements; ++i) {
      const uint64_t key = 120 - std::min<uint64_t>(30, std::geometric_distribution<uint64_t>(0.4)(rng_));
      const uint64_t sign = rng_() & 1;
      const uint32_t low = 8 * width - 9;  // bits below the key, of widths above 1
      const uint64_t value = width == 1 ? sign << 7 | key >> 1
                                        : (sign << 8 | key) << low | (rng_() & ((uint64_t{1} << low) - 1));
      StoreBits(out.bits.data() + out.lead + uint64_t{i} * width, width, value);
    }
    out.cuts.classes = classes;
    std::vector<uint8_t> cuts(255);
    for (uint32_t i = 0; i < 255; ++i) cuts[i] = static_cast<uint8_t>(i + 1);
    if (crowded) cuts.assign(cuts.begin() + 100, cuts.begin() + 122);
    std::shuffle(cuts.begin(), cuts.end(), rng_);
    cuts.resize(classes - 1);
    std::sort(cuts.begin(), cuts.end());
    std::copy(cuts.begin(), cuts.end(), out.cuts.cut);
    for (uint32_t i = 0; i < elements; ++i) {
      if (Uniform() < listed) out.positions.push_back(i);
    }
    for (size_t i = 0; i < out.positions.size(); ++i) {
      // Bits of an element that is anywhere, so of any class.
      const uint8_t* old_bits = out.at(static_cast<uint32_t>(rng_() % elements));
      out.old_bits.insert(out.old_bits.end(), old_bits, old_bits + width);
      uint8_t step[8];
      StoreBits(step, 8, i * 0x9E3779B97F4A7C15);
      out.steps.insert(out.steps.end(), step, step + width);
    }
    return out;
  }

  // In runs of the given length.
  static Ranked Rank(const ClassTable& table, const Case& block, uint32_t run) {
    const uint32_t classes = block.cuts.classes;
    const size_t count = block.positions.size();
    std::vector<std::vector<uint32_t>> ranks(classes, std::vector<uint32_t>(count));
    std::vector<std::vector<uint8_t>> steps(classes, std::vector<uint8_t>(count * block.width));
    std::vector<RankList> lists(classes);
    for (uint32_t c = 0; c < classes; ++c) lists[c] = {ranks[c].data(), steps[c].data(), 0, 0};
    size_t done = 0;
    for (uint32_t begin = 0; begin < block.elements; begin += run) {
      const uint32_t length = std::min(run, block.elements - begin);
      size_t end = done;
      while (end < count && block.positions[end] < begin + length) ++end;
      table.rank(block.at(begin), block.width, length, begin, block.cuts, block.positions.data() + done,
                 block.old_bits.data() + done * block.width, block.steps.data() + done * block.width,
                 static_cast<uint32_t>(end - done), lists.data());
      done = end;
    }
    Ranked out;
    for (uint32_t c = 0; c < classes; ++c) {
      ranks[c].resize(lists[c].count);
      steps[c].resize(uint64_t{lists[c].count} * block.width);
      out.seen.push_back(lists[c].seen);
    }
    out.ranks = std::move(ranks);
    out.steps = std::move(steps);
    return out;
  }

  std::mt19937_64 rng_;
};
INSTANTIATE_TEST_SUITE_P(Targets, ClassWalkTest, testing::ValuesIn(Targets()),
                         [](const auto& tested) { return std::string(hwy::TargetName(tested.param)); });

TEST_P(ClassWalkTest, TheTargetIsTheOneAsked) {
  const bool plain = GetParam() == HWY_SCALAR || GetParam() == HWY_EMU128;
  EXPECT_EQ(CpuClassTable().name, plain ? "ref" : std::string("cpu/N_") + hwy::TargetName(GetParam()));
}

TEST_P(ClassWalkTest, RanksAndPlacesEqualTheReference) {
  std::vector<uint32_t> sizes = {0, 1, 63, 64, 65, 127, 130, 2047, 2048, 2049, 4096, 5001, 9000};
  for (const uint32_t width : {1u, 2u, 4u, 8u}) {
    for (const uint32_t elements : sizes) {
      for (const uint32_t classes : {1u, 2u, 4u, 7u, 8u, 12u, 16u}) {
        const double listed = std::vector{0.0, 0.002, 0.02, 0.4, 1.0}[rng_() % 5];
        const Case block = Random(width, elements, classes, listed);
        SCOPED_TRACE(testing::Message() << "width " << width << " elements " << elements << " classes "
                                        << classes << " listed " << block.positions.size());
        const Ranked expected = Rank(RefClassTable(), block, std::max(elements, 1u));
        ASSERT_EQ(Rank(CpuClassTable(), block, std::max(elements, 1u)), expected);
        const uint32_t run = 1 + static_cast<uint32_t>(rng_() % (elements + 1));
        ASSERT_EQ(Rank(CpuClassTable(), block, run), expected) << "in runs of " << run;

        // And back, from the base.
        const Case base = block.Base();
        for (const ClassTable* table : {&RefClassTable(), &CpuClassTable()}) {
          std::vector<ClassList> lists;
          for (uint32_t c = 0; c < classes; ++c) {
            lists.push_back({expected.ranks[c].data(), expected.steps[c].data(),
                             static_cast<uint32_t>(expected.ranks[c].size()), 0, 0});
          }
          std::vector<uint32_t> positions(block.positions.size() + kPlaceSlack);
          std::vector<uint8_t> steps(positions.size() * width);
          std::vector<uint8_t> base_bits(positions.size() * width);
          uint32_t found = 0;
          for (uint32_t begin = 0; begin < elements; begin += run) {
            const uint64_t at = uint64_t{found} * width;
            found += table->place(base.at(begin), width, std::min(run, elements - begin), begin, block.cuts,
                                  lists.data(), positions.data() + found, steps.data() + at,
                                  base_bits.data() + at);
          }
          ASSERT_EQ(found, block.positions.size()) << table->name;
          positions.resize(found);
          steps.resize(uint64_t{found} * width);
          base_bits.resize(uint64_t{found} * width);
          ASSERT_EQ(positions, block.positions) << table->name;
          ASSERT_EQ(steps, block.steps) << table->name;
          ASSERT_EQ(base_bits, block.old_bits) << table->name;
          for (uint32_t c = 0; c < classes; ++c) {
            ASSERT_EQ(lists[c].seen, expected.seen[c]);
            ASSERT_EQ(lists[c].taken, lists[c].count);
          }
        }
      }
    }
  }
}

// A rank that no element of the block has stays in its list, and what comes before it is still found.
TEST_P(ClassWalkTest, RanksBeyondTheClassAreLeft) {
  const Case block = Random(2, 5000, 8, 0);
  const Ranked ranked = Rank(RefClassTable(), block, 5000);
  for (uint32_t c = 0; c < 8; ++c) {
    if (ranked.seen[c] == 0) continue;
    const std::vector<uint32_t> ranks = {ranked.seen[c] - 1, ranked.seen[c], 0xFFFFFFFF};
    const std::vector<uint16_t> steps = {1, 2, 3};
    std::vector<ClassList> lists(8);
    lists[c] = {ranks.data(), steps.data(), 3, 0, 0};
    uint32_t positions[3 + kPlaceSlack];
    uint16_t out[3 + kPlaceSlack];
    uint16_t base_bits[3 + kPlaceSlack];
    const uint32_t found =
        CpuClassTable().place(block.at(0), 2, 5000, 0, block.cuts, lists.data(), positions, out, base_bits);
    EXPECT_EQ(found, 1u);
    EXPECT_EQ(lists[c].taken, 1u);
    EXPECT_EQ(out[0], 1);
  }
}

TEST(ClassWalk, KeysOfTheDtypes) {
  // BF16 and F32: the exponent. F16: exponent and three bits. F8: the magnitude, doubled.
  const auto class_at = [](uint64_t bits, uint32_t width, uint8_t cut) {
    uint8_t bytes[8];
    StoreBits(bytes, 8, bits);
    ClassCuts cuts{.classes = 2, .cut = {cut}};
    RankList lists[2] = {};
    RefClassTable().rank(bytes, width, 1, 0, cuts, nullptr, nullptr, nullptr, 0, lists);
    return lists[1].seen;
  };
  EXPECT_EQ(class_at(0x3F80, 2, 127), 1u);
  EXPECT_EQ(class_at(0x3F80, 2, 128), 0u);
  EXPECT_EQ(class_at(0xBF7F, 2, 127), 0u);
  EXPECT_EQ(class_at(0xBF800000, 4, 127), 1u);
  EXPECT_EQ(class_at(0x3F7FFFFF, 4, 127), 0u);
  EXPECT_EQ(class_at(0x3C00, 2, 0x78), 1u);
  EXPECT_EQ(class_at(0x38, 1, 0x70), 1u);
  EXPECT_EQ(class_at(0xB7, 1, 0x70), 0u);
  EXPECT_EQ(class_at(0xBFF0000000000000, 8, 0x7F), 1u);
}

}  // namespace
}  // namespace deltawire::kernels
