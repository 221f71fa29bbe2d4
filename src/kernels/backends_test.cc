// Every Highway target against the reference: hostile data, odd sizes, odd addresses.
#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <cstdio>
#include <random>
#include <vector>

#include "kernels/adamw_band.h"
#include "kernels/element.h"
#include "kernels/kernels.h"
#include "kernels/sgd_band.h"

namespace deltawire::kernels {
namespace {

constexpr uint64_t kSeed = 20260511;
constexpr Cast kCasts[] = {Cast::kBits8,     Cast::kBits16,   Cast::kBits32,    Cast::kBits64,
                           Cast::kF32ToBf16, Cast::kF32ToF16, Cast::kBf16ToF32, Cast::kF16ToF32};

std::vector<uint32_t> Sizes() {
  std::vector<uint32_t> sizes;
  for (uint32_t n = 0; n <= 70; ++n) sizes.push_back(n);
  for (uint32_t n : {127, 128, 129, 1000, 2047, 2048, 2049, 4161}) sizes.push_back(n);
  return sizes;
}

std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  return targets;
}

// Bytes at an odd distance from any alignment; they end with the allocation, so sanitizers see overruns.
class Bytes {
 public:
  Bytes(uint64_t size, uint32_t lead) : storage_(size + lead), lead_(lead) {}
  uint8_t* data() { return storage_.data() + lead_; }
  const uint8_t* data() const { return storage_.data() + lead_; }
  // The offset is split between base and offset, as views into a shard do.
  Source source() const { return {storage_.data(), lead_}; }
  Target target() { return {storage_.data(), lead_}; }
  bool operator==(const Bytes& other) const { return storage_ == other.storage_; }

 private:
  std::vector<uint8_t> storage_;
  uint32_t lead_;
};

class BackendTest : public testing::TestWithParam<int64_t> {
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

  // Float32 and BF16 patterns that break careless kernels, among random bits.
  Bytes Hostile(uint64_t size, uint32_t lead) {
    static constexpr uint32_t kPatterns[] = {
        0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0x7FFFFFFF,
        0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0x3F808000, 0x3F818000,
        0x01000000, 0x81008000, 0x38800000, 0x33000000, 0x477FF000, 0x00008000, 0x80008000, 0x00007FFF};
    Bytes bytes(size, lead);
    uint64_t i = 0;
    for (; i + 4 <= size; i += 4) {
      const uint64_t dice = rng_();
      StoreAs<uint32_t>(bytes.data() + i, dice & 1 ? kPatterns[(dice >> 8) % std::size(kPatterns)]
                                                   : static_cast<uint32_t>(dice >> 32));
    }
    for (; i < size; ++i) bytes.data()[i] = static_cast<uint8_t>(rng_());
    return bytes;
  }

  std::vector<uint32_t> Positions(uint32_t n, double share) {
    std::vector<uint32_t> positions;
    for (uint32_t i = 0; i < n; ++i) {
      if (std::uniform_real_distribution<>()(rng_) < share) positions.push_back(i);
    }
    return positions;
  }

  std::mt19937_64 rng_;
};
INSTANTIATE_TEST_SUITE_P(Targets, BackendTest, testing::ValuesIn(Targets()),
                         [](const auto& tested) { return std::string(hwy::TargetName(tested.param)); });

TEST_P(BackendTest, TheTargetIsTheOneAsked) {
  if (GetParam() == HWY_SCALAR || GetParam() == HWY_EMU128) {
    EXPECT_STREQ(CpuTable().name, "ref");
  } else {
    EXPECT_EQ(CpuTable().name, std::string("cpu/N_") + hwy::TargetName(GetParam()));
    EXPECT_EQ(CpuHostTable().name, std::string("cpu/N_") + hwy::TargetName(GetParam()));
  }
}

TEST_P(BackendTest, ReadCopyDigest) {
  for (Cast cast : kCasts) {
    const uint32_t served = ServedBytes(cast);
    for (uint32_t n : Sizes()) {
      const Bytes live = Hostile(uint64_t{n} * StoredBytes(cast), n % 9);
      std::vector<uint8_t> expected(uint64_t{n} * served), actual(expected.size());
      RefTable().read(live.source(), cast, n, expected.data());
      CpuTable().read(live.source(), cast, n, actual.data());
      ASSERT_EQ(actual, expected) << "cast " << int(cast) << " n " << n;
      Bytes copy(uint64_t{n} * served, (n + 3) % 5);
      CpuTable().copy(live.source(), cast, n, copy.target());
      ASSERT_TRUE(n == 0 || std::memcmp(copy.data(), expected.data(), expected.size()) == 0);

      const uint64_t canonical = (rng_() % (1 << 20)) * served;
      uint64_t want[2] = {1, 2}, have[2] = {1, 2};
      RefTable().digest(live.source(), cast, n, canonical, 99, want);
      CpuTable().digest(live.source(), cast, n, canonical, 99, have);
      ASSERT_EQ(have[0], want[0]) << "cast " << int(cast) << " n " << n << " canonical " << canonical;
      ASSERT_EQ(have[1], want[1]);
    }
  }
}

TEST_P(BackendTest, ReadStrided) {
  for (Cast cast : kCasts) {
    for (int64_t stride : {0, 1, -1, 3, -7}) {
      for (uint32_t n : {0u, 1u, 2u, 17u, 70u}) {
        const uint64_t reach = (n == 0 ? 0 : static_cast<uint64_t>(std::abs(stride)) * (n - 1)) + 1;
        const Bytes live = Hostile(reach * StoredBytes(cast), 3);
        Source first = live.source();
        if (stride < 0) first.offset += (reach - 1) * StoredBytes(cast);
        std::vector<uint8_t> expected(uint64_t{n} * ServedBytes(cast)), actual(expected.size());
        RefTable().read_strided(first, cast, stride, n, expected.data());
        CpuTable().read_strided(first, cast, stride, n, actual.data());
        ASSERT_EQ(actual, expected) << "cast " << int(cast) << " stride " << stride << " n " << n;
      }
    }
  }
}

TEST_P(BackendTest, CompareNoneSomeAll) {
  for (Cast cast : kCasts) {
    const uint32_t served = ServedBytes(cast);
    for (uint32_t n : Sizes()) {
      for (double share : {0.0, 0.02, 1.0}) {
        const Bytes live = Hostile(uint64_t{n} * StoredBytes(cast), n % 7);
        Bytes old(uint64_t{n} * served, (n + 1) % 6);
        RefTable().copy(live.source(), cast, n, old.target());
        const auto altered = Positions(n, share);
        // One bit anywhere, the sign of zero and the payload of NaN among them.
        for (uint32_t i : altered) {
          const uint32_t bit = rng_() % (8 * served);
          old.data()[uint64_t{i} * served + bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
        }
        std::vector<uint32_t> pos[2] = {std::vector<uint32_t>(n), std::vector<uint32_t>(n)};
        std::vector<uint8_t> before[2], after[2];
        uint32_t counts[2];
        for (int which = 0; which < 2; ++which) {
          before[which].resize(uint64_t{n} * served);
          after[which].resize(uint64_t{n} * served);
          const Table& table = which == 0 ? RefTable() : CpuTable();
          counts[which] = table.compare(old.source(), live.source(), cast, n, pos[which].data(),
                                        before[which].data(), after[which].data());
          pos[which].resize(counts[which]);
          before[which].resize(uint64_t{counts[which]} * served);
          after[which].resize(uint64_t{counts[which]} * served);
        }
        ASSERT_EQ(pos[0], altered);
        ASSERT_EQ(pos[1], altered) << "cast " << int(cast) << " n " << n << " share " << share;
        ASSERT_EQ(before[1], before[0]);
        ASSERT_EQ(after[1], after[0]);
      }
    }
  }
}

TEST_P(BackendTest, GatherScatterWrite) {
  for (uint32_t n : Sizes()) {
    for (double share : {0.05, 0.9}) {
      const auto pos = Positions(n, share);
      const auto k = static_cast<uint32_t>(pos.size());
      for (Cast cast : kCasts) {
        const Bytes live = Hostile(uint64_t{n} * StoredBytes(cast), n % 5);
        std::vector<uint8_t> expected(uint64_t{k} * ServedBytes(cast)), actual(expected.size());
        RefTable().gather(live.source(), cast, pos.data(), k, expected.data());
        CpuTable().gather(live.source(), cast, pos.data(), k, actual.data());
        ASSERT_EQ(actual, expected) << "cast " << int(cast) << " n " << n;
      }
      for (uint32_t width : {1u, 2u, 4u, 8u}) {
        Bytes expected = Hostile(uint64_t{n} * width, n % 5);
        Bytes actual = expected;
        const Bytes bits = Hostile(uint64_t{k} * width, 1);
        RefTable().scatter(expected.target(), width, pos.data(), k, bits.data());
        CpuTable().scatter(actual.target(), width, pos.data(), k, bits.data());
        ASSERT_TRUE(actual == expected) << "width " << width << " n " << n;
        const Bytes all = Hostile(uint64_t{n} * width, 3);
        CpuTable().write(actual.target(), width, n, all.data());
        ASSERT_TRUE(n == 0 || std::memcmp(actual.data(), all.data(), uint64_t{n} * width) == 0);
      }
    }
  }
}

TEST_P(BackendTest, SelectSmall) {
  for (Cast cast : {Cast::kBits16, Cast::kF32ToBf16}) {
    for (uint32_t n : Sizes()) {
      Bytes live = Hostile(uint64_t{n} * StoredBytes(cast), n % 3);
      std::vector<uint32_t> pos[2] = {std::vector<uint32_t>(n), std::vector<uint32_t>(n)};
      std::vector<uint16_t> bits[2] = {std::vector<uint16_t>(n), std::vector<uint16_t>(n)};
      for (int which = 0; which < 2; ++which) {
        const Table& table = which == 0 ? RefTable() : CpuTable();
        const uint32_t count =
            table.select_small(live.source(), cast, n, pos[which].data(), bits[which].data());
        pos[which].resize(count);
        bits[which].resize(count);
      }
      ASSERT_EQ(pos[1], pos[0]) << "cast " << int(cast) << " n " << n;
      ASSERT_EQ(bits[1], bits[0]);
    }
  }
}

struct Lists {
  explicit Lists(uint32_t n) : changed(n), uncertain(n), old(n), low(n), span(n) {}
  bool operator==(const Lists& other) const {
    return changed == other.changed && uncertain == other.uncertain && old == other.old && low == other.low &&
           span == other.span && lanes[0] == other.lanes[0] && lanes[1] == other.lanes[1];
  }

  std::vector<uint32_t> changed, uncertain;
  std::vector<uint16_t> old, low;
  std::vector<uint8_t> span;
  uint64_t lanes[2] = {3, 4};
};

// call(lanes, out): an inversion of n elements.
template <class F>
Lists ListsOf(uint32_t n, bool digest, F&& call) {
  Lists lists(n);
  // The lists have room for n elements and not one more.
  Inverted out{lists.changed.data(),
               lists.old.data(),
               lists.uncertain.data(),
               lists.low.data(),
               lists.span.data(),
               7,
               7};
  call(digest ? lists.lanes : nullptr, &out);
  lists.changed.resize(out.changed_count);
  lists.old.resize(out.changed_count);
  lists.uncertain.resize(out.uncertain_count);
  lists.low.resize(out.uncertain_count);
  lists.span.resize(out.uncertain_count);
  return lists;
}

constexpr Moments kStorages[] = {{}, {true, true}, {true, false}, {false, true}};
constexpr uint32_t MomentBytes(bool is_bf16) { return is_bf16 ? 2 : 4; }
void StoreMoment(Bytes& to, uint32_t i, float x, bool is_bf16) {
  if (is_bf16) {
    StoreAs<uint16_t>(to.data() + 2 * i, Bf16FromF32(std::bit_cast<uint32_t>(x)));
  } else {
    StoreAs<float>(to.data() + 4 * i, x);
  }
}

TEST_P(BackendTest, InvertAdamwOnHostileAndOrdinaryMoments) {
  for (const Moments stored : kStorages) {
    for (double eps : {1e-8, 1e-15, 1e-30}) {
      for (double lr : {0.0, 1e-6, 3e-3, 1e30}) {
        const auto band =
            MakeAdamwBand({.lr = lr, .weight_decay = lr < 1 ? 0.1 : 0, .beta2 = 0.95, .eps = eps, .step = 3},
                          MomentError(stored.m_is_bf16, stored.v_is_bf16));
        ASSERT_TRUE(band.has_value()) << band.error();
        for (uint32_t n : Sizes()) {
          Bytes theta = Hostile(uint64_t{n} * 4, n % 5),
                m = Hostile(uint64_t{n} * MomentBytes(stored.m_is_bf16), 2),
                v = Hostile(uint64_t{n} * MomentBytes(stored.v_is_bf16), 3);
          const auto expect_equal = [&](const char* what, uint64_t canonical, bool digest) {
            const auto with = [&](const Table& table) {
              return ListsOf(n, digest, [&](uint64_t* lanes, Inverted* out) {
                table.invert_adamw(theta.source(), m.source(), v.source(), stored, *band, n, canonical, 12,
                                   lanes, out);
              });
            };
            ASSERT_TRUE(with(CpuTable()) == with(RefTable()))
                << what << ": eps " << eps << " lr " << lr << " n " << n << " BF16 " << stored.m_is_bf16
                << stored.v_is_bf16;
          };
          expect_equal("hostile", 2 * n, true);
          // Weights next to the edges of their cells, updates of every size around them, some moments zero.
          for (uint32_t i = 0; i < n; ++i) {
            const float near_edge = std::bit_cast<float>(
                static_cast<uint32_t>(0x3C008000 + (rng_() % 0x400) * 0x10000 + rng_() % 9 - 4) |
                uint32_t(rng_() & 1) << 31);
            const float size = std::ldexp(1.0f, -int(rng_() % 80));
            StoreAs<float>(theta.data() + 4 * i, near_edge);
            StoreMoment(v, i, rng_() % 16 == 0 ? 0 : size * size, stored.v_is_bf16);
            StoreMoment(
                m, i, rng_() % 16 == 0 ? 0 : (rng_() & 1 ? -size : size) * (1 + float(rng_() % 1000) / 1000),
                stored.m_is_bf16);
          }
          expect_equal("ordinary", 6, true);
          expect_equal("without digest", 6, false);
        }
      }
    }
  }
}

TEST_P(BackendTest, InvertSgdOnHostileAndOrdinaryStates) {
  for (const SgdHyper& hyper : {SgdHyper{0, 0, 0},
                                {1e-3, 0, 0},
                                {0.1, 0.01, 0},
                                {1e-3, 1e-2, 0.9},
                                {-0.1, -1.0, -0.99},
                                {1e30, 0, 0},
                                {1e-30, 0, 1e20}}) {
    const auto band = MakeSgdBand(hyper);
    ASSERT_TRUE(band.has_value()) << band.error();
    for (uint32_t n : Sizes()) {
      Bytes theta = Hostile(uint64_t{n} * 4, n % 5), x = Hostile(uint64_t{n} * 4, 2),
            y = Hostile(uint64_t{n} * 4, 3);
      const auto expect_equal = [&](const char* what, bool digest) {
        for (const bool with_y : {false, true}) {
          const auto with = [&](const Table& table) {
            return ListsOf(n, digest, [&](uint64_t* lanes, Inverted* out) {
              table.invert_sgd(theta.source(), x.source(), with_y ? y.source() : Source{nullptr, 0}, *band, n,
                               6, 12, lanes, out);
            });
          };
          ASSERT_TRUE(with(CpuTable()) == with(RefTable()))
              << what << ": lr " << hyper.lr << " mu " << hyper.mu << " n " << n << " y " << with_y;
        }
      };
      expect_equal("hostile", true);
      for (uint32_t i = 0; i < n; ++i) {
        StoreAs<uint32_t>(theta.data() + 4 * i,
                          static_cast<uint32_t>(0x3C008000 + (rng_() % 0x400) * 0x10000 + rng_() % 9 - 4) |
                              uint32_t(rng_() & 1) << 31);
        for (Bytes* state : {&x, &y}) {
          const float size =
              rng_() % 16 == 0 ? 0 : std::ldexp(1 + float(rng_() % 1000) / 1000, -int(rng_() % 30));
          StoreAs<float>(state->data() + 4 * i, rng_() & 1 ? -size : size);
        }
      }
      expect_equal("ordinary", true);
      expect_equal("without digest", false);
    }
  }
}

TEST_P(BackendTest, DigestOfChangesIsTheDifferenceOfDigests) {
  for (uint32_t width : {1u, 2u, 4u, 8u}) {
    const Cast cast = width == 1   ? Cast::kBits8
                      : width == 2 ? Cast::kBits16
                      : width == 4 ? Cast::kBits32
                                   : Cast::kBits64;
    for (uint32_t n : {0u, 1u, 7u, 70u, 9000u}) {
      for (double share : {0.01, 0.3, 1.0}) {  // neighbours share words
        const auto pos = Positions(n, share);
        const auto k = static_cast<uint32_t>(pos.size());
        Bytes before = Hostile(uint64_t{n} * width, 1);
        Bytes after = before;
        const Bytes bits = Hostile(uint64_t{k} * width, 1);
        RefTable().scatter(after.target(), width, pos.data(), k, bits.data());
        const uint64_t canonical = (rng_() % 100000) * width;
        uint64_t expected[2] = {5, 6};
        uint64_t minus[2] = {0, 0};
        RefTable().digest(after.source(), cast, n, canonical, 21, expected);
        RefTable().digest(before.source(), cast, n, canonical, 21, minus);
        for (int lane = 0; lane < 2; ++lane) expected[lane] -= minus[lane];

        std::vector<uint8_t> old_bits(uint64_t{k} * width);
        RefTable().gather(before.source(), cast, pos.data(), k, old_bits.data());
        // In any order.
        std::vector<uint32_t> shuffled(k), order(k);
        for (uint32_t i = 0; i < k; ++i) order[i] = i;
        if (share < 1) std::shuffle(order.begin(), order.end(), rng_);
        std::vector<uint8_t> old_shuffled(old_bits.size()), new_shuffled(old_bits.size());
        for (uint32_t i = 0; i < k; ++i) {
          shuffled[i] = pos[order[i]];
          std::memcpy(&old_shuffled[uint64_t{i} * width], &old_bits[uint64_t{order[i]} * width], width);
          std::memcpy(&new_shuffled[uint64_t{i} * width], bits.data() + uint64_t{order[i]} * width, width);
        }
        for (const HostTable* table : {&RefHostTable(), &CpuHostTable()}) {
          uint64_t lanes[2] = {5, 6};
          table->digest_changes(21, canonical, width, shuffled.data(), k, old_shuffled.data(),
                                new_shuffled.data(), lanes);
          ASSERT_EQ(lanes[0], expected[0])
              << table->name << " width " << width << " n " << n << " share " << share;
          ASSERT_EQ(lanes[1], expected[1]);
        }
      }
    }
  }
}

TEST_P(BackendTest, StepsAndBack) {
  for (uint32_t width : {1u, 2u, 4u, 8u}) {
    for (uint32_t k : Sizes()) {
      const Bytes before = Hostile(uint64_t{k} * width, 0), after = Hostile(uint64_t{k} * width, 0);
      std::vector<uint8_t> expected(uint64_t{k} * width), steps(expected.size()), back(expected.size());
      RefHostTable().steps(width, before.data(), after.data(), k, expected.data());
      CpuHostTable().steps(width, before.data(), after.data(), k, steps.data());
      ASSERT_EQ(steps, expected) << "width " << width << " k " << k;
      for (const HostTable* table : {&RefHostTable(), &CpuHostTable()}) {
        table->apply_steps(width, before.data(), steps.data(), k, back.data());
        ASSERT_TRUE(k == 0 || std::memcmp(back.data(), after.data(), back.size()) == 0) << table->name;
      }
    }
  }
}

}  // namespace
}  // namespace deltawire::kernels
