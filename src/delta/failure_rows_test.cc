// Situations of docs/failures.md that concern the wire, in every coding.
#include <gtest/gtest.h>

#include "delta/update_test.h"

namespace deltawire::delta {
namespace {

using codec::Coding;
constexpr Coding kCodings[] = {Coding::kClass, Coding::kStep, Coding::kAbsolute, Coding::kOpen};

class DriftTest : public UpdateTest {
 protected:
  DriftTest() : UpdateTest({{.name = "w", .dtype = Dtype::kBf16, .shape = {3000}}}) {}

  // One element in ten moves by one to three steps of the monotone order, across zero, subnormals and
  // binades.
  std::vector<Bytes> Drift() {
    std::vector<Bytes> next = model_.bits;
    for (size_t at = 0; at < next[0].size(); at += 2) {
      if (rng_.Next() % 10 != 0) continue;
      const auto old = codec::Ordinal(LoadLe<uint16_t>(next[0].data() + at));
      const auto step = static_cast<uint16_t>(rng_.Next() % 3 + 1);
      const auto moved = static_cast<uint16_t>(rng_.Next() % 2 ? old + step : old - step);
      StoreLe(codec::Ordinal(moved), next[0].data() + at);
    }
    return next;
  }
};

TEST_F(DriftTest, DTY_03_TwoHundredSmallStepsAreExactAtEach) {
  for (const Coding coding : kCodings) {
    // Smallest magnitudes, binade borders, the largest finite ones.
    for (size_t at = 0; at < model_.bits[0].size(); at += 2) {
      constexpr uint16_t kFrom[] = {0x0001, 0x8001, 0x007F, 0x0080, 0x3F7F, 0x3F80, 0xBF80, 0x7F7E, 0x0000};
      StoreLe(kFrom[at / 2 % std::size(kFrom)], model_.bits[0].data() + at);
    }
    engine_ = model_.bits;
    Attach();
    for (int version = 0; version < 200; ++version) {
      const std::vector<Bytes> next = Drift();
      const auto staged = Stage(Encode(next, coding));
      model_.bits = next;
      ASSERT_TRUE(staged) << version << ": " << staged.error().message();
      ASSERT_TRUE(replica_->Commit());
      ASSERT_EQ(engine_, model_.bits) << "coding " << static_cast<int>(coding) << ", version " << version;
    }
  }
}

TEST_F(DriftTest, VER_07_AnUpdateThatComesAgainChangesNothing) {
  for (const Coding coding : kCodings) {
    const std::vector<Bytes> next = Drift();
    const Bytes file = Encode(next, coding);
    model_.bits = next;
    ASSERT_TRUE(Stage(file));
    // Before it is committed, and after.
    EXPECT_EQ(Stage(file).error().code(), Code::kWrongBase);
    ASSERT_TRUE(replica_->Commit());
    for (int again = 0; again < 3; ++again) {
      EXPECT_EQ(Stage(file).error().code(), Code::kWrongBase);
      EXPECT_FALSE(replica_->has_staged());
      EXPECT_EQ(engine_, model_.bits);
    }
    // Interrupted: taken back, then delivered again.
    ASSERT_TRUE(replica_->Undo());
    ASSERT_TRUE(Stage(file));
    ASSERT_TRUE(replica_->Commit());
    EXPECT_EQ(engine_, model_.bits);
    EXPECT_TRUE(replica_->Verify());
  }
}

// The bytes of an update follow what changed, not how much could have.
class SizeTest : public UpdateTest {
 protected:
  SizeTest() : UpdateTest({{.name = "w", .dtype = Dtype::kBf16, .shape = {4096, 1024}, .grid = {0, 4}}}) {}
};

TEST_F(SizeTest, MEM_08_TenChangesAreSmall) {
  std::vector<Bytes> next = model_.bits;
  for (int i = 0; i < 10; ++i) next[0][rng_.Next() % next[0].size()] ^= 1;
  for (const Coding coding : kCodings) EXPECT_LT(Encode(next, coding).size(), 2000u);
}

// 20,000 tensors of 64 elements: what a tensor costs beyond its changes is a few bytes.
class ManyTest : public UpdateTest {
 protected:
  static constexpr uint32_t kTensors = 20'000;
  ManyTest() : UpdateTest(Tensors()) {}
  static std::vector<format::InventoryTensor> Tensors() {
    std::vector<format::InventoryTensor> tensors;
    for (uint32_t i = 0; i < kTensors; ++i) {
      tensors.push_back({.name = fmt::format("t{:05}", i), .dtype = Dtype::kBf16, .shape = {64}});
    }
    return tensors;
  }
};

TEST_F(ManyTest, MEM_01_ManySmallTensorsCostTheirBytes) {
  std::vector<Bytes> next = model_.bits;
  uint64_t changed = 0;
  for (auto& bits : next) {
    for (size_t at = 0; at < bits.size(); at += 2) {
      if (rng_.Next() % 64 != 0) continue;
      bits[at] ^= 1;
      ++changed;
    }
  }
  for (const Coding coding : {Coding::kClass, Coding::kStep, Coding::kAbsolute}) {
    const Bytes file = Encode(next, coding);
    EXPECT_LT(file.size(), 3 * changed + kTensors);
    ASSERT_TRUE(Stage(file));
    replica_->DiscardStaged();
  }
}

}  // namespace
}  // namespace deltawire::delta
