// Updates in class coding: blocks large enough for classes, uncertain elements, chains, damaged bases.
#include <gtest/gtest.h>

#include "delta/update_test.h"

namespace deltawire::delta {
namespace {

class ClassUpdateTest : public UpdateTest {
 protected:
  ClassUpdateTest()
      : UpdateTest({{.name = "a", .dtype = Dtype::kBf16, .shape = {256, 512}, .grid = {0, 2}},
                    {.name = "b", .dtype = Dtype::kF32, .shape = {64, 301}},
                    {.name = "c", .dtype = Dtype::kF8E4M3, .shape = {77, 300}},
                    {.name = "d", .dtype = Dtype::kF16, .shape = {20'011}},
                    {.name = "e", .dtype = Dtype::kI64, .shape = {3}},
                    {.name = "f", .dtype = Dtype::kBf16, .shape = {150, 101}},
                    {.name = "g", .dtype = Dtype::kF32, .shape = {33}},
                    {.name = "h", .dtype = Dtype::kBf16, .shape = {1}},
                    {.name = "i", .dtype = Dtype::kF8E5M2, .shape = {}},
                    {.name = "j", .dtype = Dtype::kBf16, .shape = {7, 11}}}) {}
};

TEST_F(ClassUpdateTest, EveryDensityWithUncertainElements) {
  for (const double density : {0.0, 1e-4, 0.003, 0.02, 0.3, 1.0, 0.01}) {
    for (const double uncertain : {0.0, 2e-4, 0.05}) {
      SCOPED_TRACE(testing::Message() << "density " << density << " uncertain " << uncertain);
      const auto staged = Stage(Advance(density, codec::Coding::kClass, false, uncertain));
      ASSERT_TRUE(staged) << staged.error().message();
      ASSERT_TRUE(replica_->Commit());
      ASSERT_EQ(engine_, model_.bits);
    }
  }
}

TEST_F(ClassUpdateTest, IsSmallerThanStep) {
  const std::vector<Bytes> next = Change(0.02);
  EXPECT_LT(10 * Encode(next, codec::Coding::kClass).size(), 9 * Encode(next, codec::Coding::kStep).size());
}

// Each update's base is what the ones before it have staged over the live bits: sparse, dense, sparse.
TEST_F(ClassUpdateTest, AChainOfEveryCodingIsOneCommit) {
  const std::vector<Bytes> before = engine_;
  ASSERT_TRUE(Stage(Advance(0.02, codec::Coding::kClass, false, 1e-3)));
  ASSERT_TRUE(Stage(Advance(0.02, codec::Coding::kClass, false, 1e-3)));
  ASSERT_TRUE(Stage(Advance(0.02, codec::Coding::kStep, false, 1e-3)));
  ASSERT_TRUE(Stage(Advance(0.02, codec::Coding::kClass, false, 1e-3)));
  ASSERT_TRUE(Stage(Advance(0.02, codec::Coding::kClass, true)));
  ASSERT_TRUE(Stage(Advance(0.02, codec::Coding::kClass, false, 1e-3)));
  ASSERT_TRUE(Stage(Advance(0.02, codec::Coding::kAbsolute)));
  ASSERT_TRUE(Stage(Advance(0.02, codec::Coding::kClass)));
  ASSERT_EQ(engine_, before);
  ASSERT_TRUE(replica_->Commit());
  ASSERT_EQ(engine_, model_.bits);
  ASSERT_TRUE(replica_->Undo());
  ASSERT_EQ(engine_, before);
}

// An element whose class differs moves the ranks of two classes, so the update leads elsewhere: found by the
// populations even where nothing after it was listed.
TEST_F(ClassUpdateTest, ADifferentClassAnywhereInTheBlockIsFoundBeforeAnyWrite) {
  const Bytes file = Advance(0.02, codec::Coding::kClass, false, 1e-3);
  const std::vector<Bytes> intact = engine_;
  const uint64_t elements = engine_[0].size() / 2;
  std::vector<uint64_t> places = {0, elements / 2 - 1, elements / 2, elements - 1};
  for (int i = 0; i < 50; ++i) places.push_back(rng_.Next() % elements);
  int refused = 0;
  for (const uint64_t place : places) {
    // From wherever it is to the class at the other end.
    uint8_t* const element = engine_[0].data() + 2 * place;
    const auto bits = LoadLe<uint16_t>(element);
    StoreLe(static_cast<uint16_t>((bits & 0x7F) | ((bits >> 7 & 0xFF) < 118 ? 127 << 7 : 1 << 7)), element);
    const std::vector<Bytes> damaged = engine_;
    const auto staged = Stage(file);
    if (!staged) {
      ++refused;
      EXPECT_EQ(staged.error().code(), Code::kWrongBase) << staged.error().message();
      EXPECT_NE(staged.error().message().find("tensor a"), std::string::npos);
    }
    EXPECT_FALSE(replica_->has_staged());
    EXPECT_EQ(engine_, damaged);
    engine_ = intact;
  }
  EXPECT_EQ(refused, static_cast<int>(places.size()));
  ASSERT_TRUE(Stage(file));
  ASSERT_TRUE(replica_->Commit());
  EXPECT_EQ(engine_, model_.bits);
}

TEST_F(ClassUpdateTest, WithoutTheBlocksBitsThereIsNoClassCoding) {
  format::UpdateHeader header;
  const auto update = EncodeUpdate(header, model_.inventory, *model_.grid, {},
                                   {.coding = codec::Coding::kClass}, Parallel(1));
  ASSERT_FALSE(update);
  EXPECT_EQ(update.error().code(), Code::kInvalidArgument);
}

// Never more than the new bits, whatever changes: a block that does not compress becomes dense.
TEST_F(ClassUpdateTest, EverythingChangedAtRandomIsNoLargerThanItsBits) {
  std::vector<Bytes> next = model_.bits;
  uint64_t raw = 0;
  for (Bytes& bits : next) {
    for (uint8_t& byte : bits) byte = static_cast<uint8_t>(rng_.Next());
    raw += bits.size();
  }
  for (const auto coding : {codec::Coding::kClass, codec::Coding::kStep, codec::Coding::kAbsolute}) {
    EXPECT_LE(Encode(next, coding).size(), raw + raw / 1000 + 1500);
    const Bytes file = Encode(next, coding, false, 0.5);
    EXPECT_LE(file.size(), raw + raw / 1000 + 1500);
    number_ = 0;
    ASSERT_TRUE(Stage(file));
    replica_->DiscardStaged();
  }
}

}  // namespace
}  // namespace deltawire::delta
