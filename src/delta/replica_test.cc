#include "delta/replica.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "delta/encode.h"

namespace deltawire::delta {
namespace {

const device::Backends kBackends = device::HostBackends();

// A run of three tensors (one tied, one transposed in the receiver's memory, one scalar) at successive
// versions.
class ReplicaTest : public testing::TestWithParam<codec::Coding> {
 protected:
  ReplicaTest() {
    inventory_.tensors = {
        {.name = "a", .aliases = {"a.tied"}, .dtype = Dtype::kBf16, .shape = {40, 30}, .grid = {0, 4}},
        {.name = "b", .aliases = {}, .dtype = Dtype::kF32, .shape = {16, 8}, .grid = {1, 2}},
        {.name = "c", .aliases = {}, .dtype = Dtype::kU8, .shape = {}, .grid = {}},
    };
    grid_ = std::make_unique<GridIndex>(inventory_);
    for (const auto& tensor : inventory_.tensors) {
      Bytes bits(*ElementCount(tensor.shape) * DtypeBytes(tensor.dtype));
      for (auto& byte : bits) byte = static_cast<uint8_t>(rng_.Next());
      state_.push_back(std::move(bits));
    }
  }

  Digest DigestOf(uint32_t tensor, uint32_t block, const Bytes& bits) {
    const auto& t = inventory_.tensors[tensor];
    const TensorView view = View(tensor, bits);
    return device::Block(kBackends, view, grid_->boxes(tensor)[block],
                         device::CastOfWidth(DtypeBytes(t.dtype)), DigestKey(t.name))
        .DigestNow();
  }
  TensorView View(uint32_t tensor, const Bytes& bits) {
    const auto& t = inventory_.tensors[tensor];
    return TensorView::RowMajor(BorrowHost(const_cast<uint8_t*>(bits.data()), bits.size()), 0, t.dtype,
                                t.shape);
  }
  Digest StateDigest(const std::vector<Bytes>& state) {
    Digest digest;
    for (const auto [tensor, block] : grid_->places()) digest += DigestOf(tensor, block, state[tensor]);
    return digest;
  }

  // The update from state_ to `next`; then state_ = next. drop: forgets one changed element.
  Bytes Advance(std::vector<Bytes> next, bool drop = false, bool dense = false) {
    std::vector<ChangedTensor> tensors;
    for (uint32_t t = 0; t < inventory_.tensors.size(); ++t) {
      ChangedTensor tensor{t, {}, {}};
      const uint32_t width = DtypeBytes(inventory_.tensors[t].dtype);
      for (uint32_t b = 0; b < grid_->boxes(t).size(); ++b) {
        const device::Block was(kBackends, Keep(View(t, state_[t])), grid_->boxes(t)[b],
                                device::CastOfWidth(width), 0);
        const device::Block now(kBackends, Keep(View(t, next[t])), grid_->boxes(t)[b],
                                device::CastOfWidth(width), 0);
        Bytes old_bits(uint64_t{was.elements()} * width);
        was.Read(old_bits);
        ChangedBlock changed{b, {}, DigestOf(t, b, next[t])};
        now.Compare(*BorrowHost(old_bits.data(), old_bits.size()), 0, changed.change.changed,
                    changed.change.old_bits, changed.change.new_bits);
        tensor.after += changed.after;
        if (changed.change.empty()) continue;
        if (drop) {
          changed.change.changed.pop_back();
          changed.change.old_bits.resize(changed.change.old_bits.size() - width);
          changed.change.new_bits.resize(changed.change.new_bits.size() - width);
          drop = false;
          if (changed.change.empty()) continue;
        }
        if (dense) {
          changed.change = {};
          changed.change.dense = true;
          changed.change.dense_bits.resize(old_bits.size());
          now.Read(changed.change.dense_bits);
        }
        tensor.blocks.push_back(std::move(changed));
      }
      if (!tensor.blocks.empty()) tensors.push_back(std::move(tensor));
    }
    format::UpdateHeader header;
    header.run = "run";
    header.number = ++number_;
    header.base = number_ - 1;
    header.writer = "w";
    header.inventory = format::InventoryHash(inventory_);
    header.base_digest = StateDigest(state_);
    header.digest = StateDigest(next);
    EncodeOptions options{.coding = GetParam(), .source = {}};
    options.source.read = [&](uint32_t t, const Box& box, MutableByteSpan out) -> Status {
      const TensorView view = View(t, next[t]);
      device::Block(kBackends, view, box, device::CastOfWidth(DtypeBytes(view.dtype)), 0).Read(out);
      return {};
    };
    const auto update = EncodeUpdate(header, inventory_, *grid_, tensors, options, Parallel(1));
    EXPECT_TRUE(update) << update.error().message();
    state_ = std::move(next);
    return update->Join();
  }

  std::vector<Bytes> Changed(int flips) {
    std::vector<Bytes> next = state_;
    for (int i = 0; i < flips; ++i) {
      Bytes& bits = next[rng_.Next() % next.size()];
      bits[rng_.Next() % bits.size()] ^= static_cast<uint8_t>(1u << (rng_.Next() % 8));
    }
    next[0][0] ^= 1;
    return next;
  }

  const TensorView& Keep(TensorView view) {
    kept_.push_back(std::make_unique<TensorView>(std::move(view)));
    return *kept_.back();
  }

  // A receiver at the present state: "a" twice, "b" transposed in memory.
  struct Receiver {
    std::vector<ReplicaTensor> tensors;
    std::unique_ptr<Replica> replica;
  };
  Receiver Join() {
    Receiver receiver;
    for (uint32_t t = 0; t < 3; ++t) {
      const auto& tensor = inventory_.tensors[t];
      const auto make = [&] {
        auto memory = AllocateHost(state_[t].size());
        TensorView view = TensorView::RowMajor(memory, 0, tensor.dtype, tensor.shape);
        if (t == 1) view.strides = {1, 16};
        const Box whole = WholeBox(tensor.shape);
        device::Block(kBackends, view, whole, device::CastOfWidth(DtypeBytes(tensor.dtype)), 0)
            .Write(state_[t]);
        return view;
      };
      receiver.tensors.push_back({{make()}});
      if (t == 0) receiver.tensors[0].views.push_back(make());
    }
    auto attached = Replica::Attach(kBackends, inventory_, *grid_, receiver.tensors, Parallel(2));
    EXPECT_TRUE(attached) << attached.error().message();
    receiver.replica = std::make_unique<Replica>(*std::move(attached));
    EXPECT_EQ(receiver.replica->digest(), StateDigest(state_));
    return receiver;
  }
  void ExpectHolds(const Receiver& receiver, const std::vector<Bytes>& state) {
    for (uint32_t t = 0; t < 3; ++t) {
      const Box whole = WholeBox(inventory_.tensors[t].shape);
      for (const TensorView& view : receiver.tensors[t].views) {
        Bytes bits(state[t].size());
        device::Block(kBackends, view, whole, device::CastOfWidth(DtypeBytes(view.dtype)), 0).Read(bits);
        EXPECT_EQ(bits, state[t]) << inventory_.tensors[t].name;
      }
    }
    EXPECT_EQ(receiver.replica->digest(), StateDigest(state));
  }
  Status Stage(Receiver& receiver, const Bytes& file) {
    DELTAWIRE_ASSIGN(const auto decoded, DecodeUpdate(file, inventory_, *grid_, Parallel(1)));
    return receiver.replica->Stage(decoded);
  }

  SeededRng rng_{11};
  format::Inventory inventory_;
  std::unique_ptr<GridIndex> grid_;
  std::vector<Bytes> state_;
  std::vector<std::unique_ptr<TensorView>> kept_;
  uint64_t number_ = 0;
};

TEST_P(ReplicaTest, CommitsAndUndoes) {
  auto receiver = Join();
  const auto before = state_;
  const Bytes update = Advance(Changed(40));
  ASSERT_TRUE(Stage(receiver, update));
  ExpectHolds(receiver, before);
  ASSERT_TRUE(receiver.replica->Commit());
  ExpectHolds(receiver, state_);
  EXPECT_TRUE(receiver.replica->Verify());
  ASSERT_TRUE(receiver.replica->Undo());
  ExpectHolds(receiver, before);
  EXPECT_FALSE(receiver.replica->Undo());
}

TEST_P(ReplicaTest, AChainIsOneCommit) {
  auto receiver = Join();
  const auto before = state_;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Stage(receiver, Advance(Changed(300), false, i == 2)));
  ExpectHolds(receiver, before);
  ASSERT_TRUE(receiver.replica->Commit());
  ExpectHolds(receiver, state_);
  ASSERT_TRUE(receiver.replica->Undo());
  ExpectHolds(receiver, before);
}

TEST_P(ReplicaTest, VER_04_ASkippedVersionIsRefused) {
  auto receiver = Join();
  const auto before = state_;
  const Bytes first = Advance(Changed(10));
  const Bytes second = Advance(Changed(10));
  const auto refused = Stage(receiver, second);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kWrongBase);
  ExpectHolds(receiver, before);
  ASSERT_TRUE(Stage(receiver, first));
  ASSERT_TRUE(Stage(receiver, second));
  ASSERT_TRUE(receiver.replica->Commit());
  ExpectHolds(receiver, state_);
}

TEST_P(ReplicaTest, VER_07_DeliveredAgainIsRefusedAndChangesNothing) {
  auto receiver = Join();
  const Bytes update = Advance(Changed(10));
  ASSERT_TRUE(Stage(receiver, update));
  EXPECT_FALSE(Stage(receiver, update));
  ASSERT_TRUE(receiver.replica->Commit());
  EXPECT_FALSE(Stage(receiver, update));
  ExpectHolds(receiver, state_);
}

TEST_P(ReplicaTest, AMissedElementIsADetectorFault) {
  auto receiver = Join();
  const auto before = state_;
  const auto refused = Stage(receiver, Advance(Changed(20), true));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kDetectorFault) << refused.error().message();
  EXPECT_FALSE(receiver.replica->has_staged());
  ExpectHolds(receiver, before);
}

TEST_P(ReplicaTest, AFlippedBitInTheBaseIsFoundWhereTheUpdateTouchesIt) {
  auto receiver = Join();
  auto* live = static_cast<uint8_t*>(receiver.tensors[0].views[0].memory->handle());
  auto* copy = static_cast<uint8_t*>(receiver.tensors[0].views[1].memory->handle());
  const Bytes update = Advance(Changed(0));  // touches byte 0 of "a"
  live[0] ^= 4;
  auto refused = Stage(receiver, update);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kWrongBase) << refused.error().message();  // the copies disagree
  copy[0] ^= 4;
  refused = Stage(receiver, update);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(),
            GetParam() == codec::Coding::kAbsolute ? Code::kDetectorFault : Code::kWrongBase)
      << refused.error().message();
  const auto verified = receiver.replica->Verify();
  ASSERT_FALSE(verified);
  EXPECT_NE(verified.error().message().find("tensor a"), std::string::npos);
}

TEST_P(ReplicaTest, AFullStateRepairsAnything) {
  auto receiver = Join();
  std::memset(receiver.tensors[0].views[0].memory->handle(), 0, state_[0].size());
  std::memset(receiver.tensors[0].views[1].memory->handle(), 0, state_[0].size());
  Advance(Changed(15));
  std::vector<Digest> digests(3);
  for (const auto [tensor, block] : grid_->places())
    digests[tensor] += DigestOf(tensor, block, state_[tensor]);
  const auto read = [&](uint32_t tensor, uint32_t block, MutableByteSpan bits) -> Status {
    const TensorView view = View(tensor, state_[tensor]);
    device::Block(kBackends, view, grid_->boxes(tensor)[block],
                  device::CastOfWidth(DtypeBytes(inventory_.tensors[tensor].dtype)), 0)
        .Read(bits);
    return {};
  };
  auto wrong = digests;
  wrong[1].lanes[0] ^= 1;
  const auto refused = receiver.replica->StageFull(read, wrong);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("tensor b"), std::string::npos);
  ASSERT_TRUE(receiver.replica->StageFull(read, digests));
  ASSERT_TRUE(Stage(receiver, Advance(Changed(15))));
  ASSERT_TRUE(receiver.replica->Commit());
  ExpectHolds(receiver, state_);
  EXPECT_TRUE(receiver.replica->Verify());
}

TEST_P(ReplicaTest, AnEmptyUpdateIsAVersion) {
  auto receiver = Join();
  ASSERT_TRUE(Stage(receiver, Advance(state_)));
  ASSERT_TRUE(receiver.replica->Commit());
  ExpectHolds(receiver, state_);
  EXPECT_TRUE(receiver.replica->Undo());
}

TEST_P(ReplicaTest, AttachNamesDifferencesOfShapeDtypeAndCopies) {
  auto receiver = Join();
  auto tensors = receiver.tensors;
  tensors[1].views[0].shape = {8, 16};
  auto attached = Replica::Attach(kBackends, inventory_, *grid_, tensors, Parallel(1));
  ASSERT_FALSE(attached);
  EXPECT_NE(attached.error().message().find("tensor b"), std::string::npos);
  tensors = receiver.tensors;
  static_cast<uint8_t*>(tensors[0].views[1].memory->handle())[77] ^= 1;
  attached = Replica::Attach(kBackends, inventory_, *grid_, tensors, Parallel(1));
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error().code(), Code::kMismatch);
}

INSTANTIATE_TEST_SUITE_P(Codings, ReplicaTest,
                         testing::Values(codec::Coding::kStep, codec::Coding::kAbsolute,
                                         codec::Coding::kClass),
                         [](const auto& test) {
                           return test.param == codec::Coding::kStep       ? std::string("step")
                                  : test.param == codec::Coding::kAbsolute ? std::string("absolute")
                                                                           : std::string("class");
                         });

}  // namespace
}  // namespace deltawire::delta
