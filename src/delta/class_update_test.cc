// Updates in class coding: blocks large enough for classes, uncertain elements, chains, damaged bases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "codec/ordinal.h"
#include "delta/encode.h"
#include "delta/replica.h"

namespace deltawire::delta {
namespace {

const device::Backends kBackends = device::HostBackends();
constexpr uint64_t kSeed = 30;

struct Model {
  format::Inventory inventory;
  std::unique_ptr<GridIndex> grid;
  std::vector<Bytes> bits;

  TensorView View(uint32_t t, const std::vector<Bytes>& state) const {
    auto& data = const_cast<Bytes&>(state[t]);
    return TensorView::RowMajor(BorrowHost(data.data(), data.size()), 0, inventory.tensors[t].dtype,
                                inventory.tensors[t].shape);
  }
  Digest DigestOf(uint32_t t, uint32_t block, const std::vector<Bytes>& state) const {
    const TensorView view = View(t, state);
    return device::Block(kBackends, view, grid->boxes(t)[block], device::CastOfWidth(DtypeBytes(view.dtype)),
                         DigestKey(inventory.tensors[t].name))
        .DigestNow();
  }
  Digest StateDigest(const std::vector<Bytes>& state) const {
    Digest digest;
    for (const auto [tensor, block] : grid->places()) digest += DigestOf(tensor, block, state);
    return digest;
  }
};

double Uniform(Rng& rng) { return static_cast<double>(rng.Next() >> 11) * 0x1p-53; }

class ClassUpdateTest : public testing::Test {
 protected:
  ClassUpdateTest() {
    RecordProperty("seed", std::to_string(kSeed));
    auto& tensors = model_.inventory.tensors;
    tensors = {
        {.name = "a", .aliases = {}, .dtype = Dtype::kBf16, .shape = {256, 512}, .grid = {0, 2}},
        {.name = "b", .aliases = {}, .dtype = Dtype::kF32, .shape = {64, 301}, .grid = {}},
        {.name = "c", .aliases = {}, .dtype = Dtype::kF8E4M3, .shape = {77, 300}, .grid = {}},
        {.name = "d", .aliases = {}, .dtype = Dtype::kF16, .shape = {20'011}, .grid = {}},
        {.name = "e", .aliases = {}, .dtype = Dtype::kI64, .shape = {3}, .grid = {}},
    };
    model_.grid = std::make_unique<GridIndex>(model_.inventory);
    for (const auto& tensor : tensors) {
      const uint32_t width = DtypeBytes(tensor.dtype);
      Bytes bits(*ElementCount(tensor.shape) * width);
      for (uint64_t at = 0; at < bits.size(); at += width) {
        // Magnitudes halve in number with each key, as weights' do.
        const uint64_t noise = rng_.Next();
        const auto key = static_cast<uint64_t>(122 - std::countl_zero(noise | 1) % 20);
        const unsigned low = 8 * width - 9;
        const uint64_t value =
            width == 1 ? key >> 1 | (noise & 0x80) : key << low | (noise & ~(uint64_t{0xFF} << low));
        std::memcpy(bits.data() + at, &value, width);
      }
      model_.bits.push_back(std::move(bits));
    }
    engine_ = model_.bits;
    Attach();
  }

  void Attach() {
    std::vector<ReplicaTensor> tensors;
    for (uint32_t t = 0; t < engine_.size(); ++t) tensors.push_back({{model_.View(t, engine_)}});
    auto attached = Replica::Attach(kBackends, model_.inventory, *model_.grid, tensors, Parallel(2));
    ASSERT_TRUE(attached) << attached.error().message();
    replica_ = std::make_unique<Replica>(*std::move(attached));
  }

  // Small weights change more often. Of the changed ones some are uncertain; so are some unchanged ones.
  std::vector<Bytes> Change(double density) {
    std::vector<Bytes> next = model_.bits;
    for (uint32_t t = 0; t < next.size(); ++t) {
      const uint32_t width = DtypeBytes(model_.inventory.tensors[t].dtype);
      for (uint64_t at = 0; at < next[t].size(); at += width) {
        codec::WithWidth(width, [&](auto zero) {
          using U = decltype(zero);
          const U old = LoadLe<U>(next[t].data() + at);
          const double key = static_cast<double>(static_cast<uint8_t>(uint64_t{old} << 1 >> (8 * width - 8)));
          if (Uniform(rng_) > density * std::exp2(120 - key)) return;
          const U step = rng_.Next() % 16 == 0 ? static_cast<U>(rng_.Next())
                         : rng_.Next() % 2     ? U{1}
                                               : static_cast<U>(-1);
          StoreLe(codec::Ordinal(static_cast<U>(codec::Ordinal(old) + step)), next[t].data() + at);
        });
      }
    }
    return next;
  }

  Bytes Encode(const std::vector<Bytes>& next, codec::Coding coding, bool dense = false,
               double uncertain = 0) {
    std::vector<ChangedTensor> tensors;
    for (uint32_t t = 0; t < next.size(); ++t) {
      ChangedTensor tensor{t, {}, {}};
      const uint32_t width = DtypeBytes(model_.inventory.tensors[t].dtype);
      uint64_t first = 0;
      for (uint32_t b = 0; b < model_.grid->boxes(t).size(); ++b) {
        ChangedBlock changed{b, {}, model_.DigestOf(t, b, next)};
        BlockChange& change = changed.change;
        const uint64_t count = ElementCount(model_.grid->boxes(t)[b]);
        for (uint32_t i = 0; i < count; ++i) {
          const uint8_t* was = model_.bits[t].data() + (first + i) * width;
          const uint8_t* is = next[t].data() + (first + i) * width;
          if (Uniform(rng_) < uncertain) {
            change.uncertain.push_back(i);
            const bool neighbours = width == 2 && rng_.Next() % 4 != 0;
            const uint16_t low = neighbours ? codec::Ordinal(static_cast<uint16_t>(
                                                  codec::Ordinal(LoadLe<uint16_t>(was)) - rng_.Next() % 2))
                                            : uint16_t{0};
            change.uncertain_low.push_back(low);
            change.uncertain_span.push_back(neighbours);
            change.uncertain_new.insert(change.uncertain_new.end(), is, is + width);
          } else if (std::memcmp(was, is, width) != 0) {
            change.changed.push_back(i);
            change.old_bits.insert(change.old_bits.end(), was, was + width);
            change.new_bits.insert(change.new_bits.end(), is, is + width);
          }
        }
        if (dense) {
          change = {};
          change.dense = true;
          change.dense_bits.assign(next[t].begin() + static_cast<ptrdiff_t>(first * width),
                                   next[t].begin() + static_cast<ptrdiff_t>((first + count) * width));
        }
        first += count;
        tensor.after += changed.after;
        if (!change.empty()) tensor.blocks.push_back(std::move(changed));
      }
      if (!tensor.blocks.empty()) tensors.push_back(std::move(tensor));
    }
    format::UpdateHeader header;
    header.run = "run";
    header.number = ++number_;
    header.base = number_ - 1;
    header.writer = "w";
    header.inventory = format::InventoryHash(model_.inventory);
    header.base_digest = model_.StateDigest(model_.bits);
    header.digest = model_.StateDigest(next);
    ClassSource source;
    source.read = [&](uint32_t t, const Box& box, MutableByteSpan out) -> Status {
      const TensorView view = model_.View(t, next);
      device::Block(kBackends, view, box, device::CastOfWidth(DtypeBytes(view.dtype)), 0).Read(out);
      return {};
    };
    auto update = EncodeUpdate(header, model_.inventory, *model_.grid, tensors, coding,
                               format::EmbedInventory::kNo, Parallel(2), source);
    EXPECT_TRUE(update) << update.error().message();
    return update->Join();
  }
  Bytes Advance(double density, codec::Coding coding, bool dense = false, double uncertain = 0) {
    std::vector<Bytes> next = Change(density);
    Bytes file = Encode(next, coding, dense, uncertain);
    model_.bits = std::move(next);
    return file;
  }

  Status Stage(const Bytes& file) {
    DELTAWIRE_ASSIGN(const auto decoded, DecodeUpdate(file, model_.inventory, *model_.grid, Parallel(2)));
    return replica_->Stage(decoded);
  }

  SeededRng rng_{kSeed};
  Model model_;
  std::vector<Bytes> engine_;
  std::unique_ptr<Replica> replica_;
  uint64_t number_ = 0;
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
  const auto update = EncodeUpdate(header, model_.inventory, *model_.grid, {}, codec::Coding::kClass,
                                   format::EmbedInventory::kNo, Parallel(1));
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
