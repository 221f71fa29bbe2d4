// Open updates: positions in whole tensors, tensors' digests, chains, and what must be refused.
#include "delta/open_update.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "delta/replica.h"

namespace deltawire::delta {
namespace {

const device::Backends kBackends = device::HostBackends();
constexpr uint64_t kSeed = 61;

// Tensors of several widths; "cut" has several blocks.
format::Inventory Tensors() {
  return {.cast_rule = "as stored",
          .tensors = {{.name = "byte", .dtype = Dtype::kF8E4M3, .shape = {40, 3}},
                      {.name = "cut", .dtype = Dtype::kBf16, .shape = {70, 11}, .grid = {0, 8}},
                      {.name = "scalar", .dtype = Dtype::kF32, .shape = {}},
                      {.name = "wide", .dtype = Dtype::kI64, .shape = {30}}}};
}

class OpenUpdateTest : public testing::Test {
 protected:
  using State = std::vector<Bytes>;

  OpenUpdateTest() : grid_(inventory_) {
    RecordProperty("seed", std::to_string(kSeed));
    for (const auto& tensor : inventory_.tensors) {
      Bytes bits(*ElementCount(tensor.shape) * DtypeBytes(tensor.dtype));
      for (auto& byte : bits) byte = static_cast<uint8_t>(rng_.Next());
      base_.push_back(std::move(bits));
    }
  }

  TensorView View(uint32_t tensor, State& state) const {
    return TensorView::RowMajor(BorrowHost(state[tensor].data(), state[tensor].size()), 0,
                                inventory_.tensors[tensor].dtype, inventory_.tensors[tensor].shape);
  }
  Digest DigestOf(uint32_t tensor, uint32_t block, State& state) const {
    const TensorView view = View(tensor, state);
    return device::Block(kBackends, view, grid_.boxes(tensor)[block],
                         device::CastOfWidth(DtypeBytes(view.dtype)),
                         DigestKey(inventory_.tensors[tensor].name))
        .DigestNow();
  }
  Digest StateDigest(State& state) const {
    Digest digest;
    for (const auto [tensor, block] : grid_.places()) digest += DigestOf(tensor, block, state);
    return digest;
  }
  // About a third of the elements of every tensor, or of one.
  State Changed(const State& from, std::optional<uint32_t> only = std::nullopt) {
    State out = from;
    for (uint32_t t = 0; t < out.size(); ++t) {
      if (only && t != *only) continue;
      for (auto& byte : out[t]) byte ^= rng_.Next() % 3 == 0 ? static_cast<uint8_t>(rng_.Next() | 1) : 0;
    }
    return out;
  }

  Result<EncodedUpdate> Encode(State& old_state, State& new_state,
                               codec::Coding coding = codec::Coding::kOpen) const {
    std::vector<ChangedTensor> tensors;
    for (uint32_t t = 0; t < old_state.size(); ++t) {
      ChangedTensor tensor{t, {}, {}};
      const TensorView view = View(t, new_state);
      for (uint32_t b = 0; b < grid_.boxes(t).size(); ++b) {
        const Box& box = grid_.boxes(t)[b];
        const device::Block block(kBackends, view, box, device::CastOfWidth(DtypeBytes(view.dtype)), 0);
        const uint64_t offset = *RunStart(box, view.shape) * DtypeBytes(view.dtype);
        ChangedBlock changed{b, {}, DigestOf(t, b, new_state)};
        block.Compare(*BorrowHost(old_state[t].data(), old_state[t].size()), offset, changed.change.changed,
                      changed.change.old_bits, changed.change.new_bits);
        tensor.after += changed.after;
        if (!changed.change.empty()) tensor.blocks.push_back(std::move(changed));
      }
      tensors.push_back(std::move(tensor));
    }
    format::UpdateHeader header{.run = "r",
                                .number = 1,
                                .base = 0,
                                .writer = "w",
                                .inventory = format::InventoryHash(inventory_),
                                .base_digest = StateDigest(old_state),
                                .digest = StateDigest(new_state)};
    return EncodeUpdate(header, inventory_, grid_, tensors,
                        {.coding = coding, .embed = format::EmbedInventory::kYes, .source = {}}, Parallel(1));
  }
  Replica Attach(State& state) const {
    std::vector<ReplicaTensor> tensors;
    for (uint32_t t = 0; t < state.size(); ++t) tensors.push_back({{View(t, state)}});
    return Replica::Attach(kBackends, inventory_, grid_, std::move(tensors), Parallel(1)).value();
  }

  format::Inventory inventory_ = Tensors();
  GridIndex grid_;
  State base_;
  SeededRng rng_{kSeed};
};

TEST_F(OpenUpdateTest, RoundTripIsProvedAndBitIdentical) {
  State next = Changed(base_);
  const Bytes file = Encode(base_, next).value().Join();
  EXPECT_EQ(ReadPatchHead(file).value().inventory, inventory_);
  const auto update = DecodeUpdate(file, inventory_, grid_, Parallel(1)).value();
  State live = base_;
  Replica replica = Attach(live);
  ASSERT_TRUE(replica.Stage(update));
  ASSERT_TRUE(replica.Commit());
  EXPECT_EQ(live, next);
  EXPECT_TRUE(replica.Verify());
}

TEST_F(OpenUpdateTest, NothingChanged) {
  State same = base_;
  const Bytes file = Encode(base_, same).value().Join();
  const auto update = DecodeUpdate(file, inventory_, grid_, Parallel(1)).value();
  EXPECT_TRUE(update.blocks.empty());
  EXPECT_TRUE(Attach(same).Stage(update));
}

TEST_F(OpenUpdateTest, StagesOnTopOfOtherUpdatesOfAnyCoding) {
  State one = Changed(base_);
  State two = Changed(one, 1);
  for (const auto first : {codec::Coding::kStep, codec::Coding::kOpen}) {
    State live = base_;
    Replica replica = Attach(live);
    const Bytes step = Encode(base_, one, first).value().Join();
    ASSERT_TRUE(replica.Stage(DecodeUpdate(step, inventory_, grid_, Parallel(1)).value()));
    const Bytes open = Encode(one, two).value().Join();
    ASSERT_TRUE(replica.Stage(DecodeUpdate(open, inventory_, grid_, Parallel(1)).value()));
    ASSERT_TRUE(replica.Commit());
    EXPECT_EQ(live, two);
  }
}

TEST_F(OpenUpdateTest, AForeignBaseIsRefusedBeforeAnyWrite) {
  State next = Changed(base_);
  const Bytes file = Encode(base_, next).value().Join();
  State other = base_;
  other[1][0] ^= 1;
  const State before = other;
  const auto staged = Attach(other).Stage(DecodeUpdate(file, inventory_, grid_, Parallel(1)).value());
  ASSERT_FALSE(staged);
  EXPECT_EQ(staged.error().code(), Code::kWrongBase);
  EXPECT_EQ(other, before);
}

TEST_F(OpenUpdateTest, AMissedChangeIsFoundAndItsTensorNamed) {
  State next = Changed(base_);
  const Bytes file = Encode(base_, next).value().Join();
  auto update = DecodeUpdate(file, inventory_, grid_, Parallel(1)).value();
  auto& changes = update.blocks.back().changes;
  ASSERT_EQ(inventory_.tensors[update.blocks.back().members[0].tensor].name, "wide");
  changes.changed.pop_back();
  changes.values.resize(changes.values.size() - 8);
  const auto staged = Attach(base_).Stage(update);
  ASSERT_FALSE(staged);
  EXPECT_EQ(staged.error().code(), Code::kDetectorFault);
  EXPECT_NE(staged.error().message().find("tensor wide"), std::string::npos) << staged.error().message();
}

TEST_F(OpenUpdateTest, UncertainAndDenseChangesCarryTheirNewBits) {
  BlockChange mixed;
  mixed.changed = {1, 5};
  mixed.old_bits = {0, 0};
  mixed.new_bits = {0x11, 0x15};
  mixed.uncertain = {3};
  mixed.uncertain_new = {0x13};
  BlockChange dense;
  dense.dense = true;
  dense.dense_bits = {1, 2, 3, 4};
  const format::UpdateHeader header{.run = "r",
                                    .number = 1,
                                    .base = {},
                                    .writer = "w",
                                    .inventory = format::InventoryHash(inventory_),
                                    .base_digest = {},
                                    .digest = {}};
  const std::vector<ChangedTensor> tensors = {{0, {{0, mixed, {}}}, {}}, {2, {{0, dense, {}}}, {}}};
  const Bytes file =
      EncodeOpen(header, inventory_, grid_, tensors, format::EmbedInventory::kNo).value().Join();
  const auto update = DecodeUpdate(file, inventory_, grid_, Parallel(1)).value();
  ASSERT_EQ(update.blocks.size(), 2u);
  EXPECT_EQ(update.blocks[0].changes.changed, (std::vector<uint32_t>{1, 3, 5}));
  EXPECT_EQ(update.blocks[0].changes.values, (Bytes{0x11, 0x13, 0x15}));
  EXPECT_EQ(update.blocks[1].changes.changed, (std::vector<uint32_t>{0}));
  EXPECT_EQ(update.blocks[1].changes.values, dense.dense_bits);
}

TEST_F(OpenUpdateTest, ColumnsThatAreNotTheInventorysAreErrors) {
  format::UpdateHeader header;
  header.run = "r";
  header.number = 1;
  header.writer = "w";
  header.inventory = format::InventoryHash(inventory_);
  const auto code = [&](const std::string& name, Dtype dtype, const std::vector<Digest>& digests) {
    const format::OpenColumns column{.name = name,
                                     .count = 1,
                                     .index_dtype = Dtype::kU16,
                                     .index = {5, 0},
                                     .dtype = dtype,
                                     .values = Bytes(DtypeBytes(dtype))};
    auto built =
        format::BuildOpen(header, {column}, digests, inventory_, format::EmbedInventory::kNo).value();
    const Bytes file = EncodedUpdate{std::move(built.frame), std::move(built.data)}.Join();
    const auto update = DecodeUpdate(file, inventory_, grid_, Parallel(1));
    return update ? Code::kInternal : update.error().code();
  };
  EXPECT_EQ(code("byte", Dtype::kF8E4M3, {{}}), Code::kInternal);
  EXPECT_EQ(code("byte", Dtype::kU8, {{}}), Code::kMismatch);
  EXPECT_EQ(code("nobody", Dtype::kF8E4M3, {{}}), Code::kMismatch);
  EXPECT_EQ(code("scalar", Dtype::kF32, {{}}), Code::kCorrupt);  // position 5 of one element
  EXPECT_EQ(code("byte", Dtype::kF8E4M3, {}), Code::kCorrupt);
  EXPECT_EQ(code("byte", Dtype::kF8E4M3, {{}, {}}), Code::kCorrupt);
}

TEST_F(OpenUpdateTest, AGridThatCutsColumnsIsUnsupported) {
  State next = Changed(base_, 1);
  inventory_.tensors[1].grid = {1, 2};
  const GridIndex columns(inventory_);
  BlockChange change;
  change.changed = {0};
  change.old_bits = {0, 0};
  change.new_bits = {1, 0};
  const format::UpdateHeader header{.run = "r",
                                    .number = 1,
                                    .base = {},
                                    .writer = "w",
                                    .inventory = format::InventoryHash(inventory_),
                                    .base_digest = {},
                                    .digest = {}};
  const auto update =
      EncodeOpen(header, inventory_, columns, {{1, {{0, change, {}}}, {}}}, format::EmbedInventory::kNo);
  ASSERT_FALSE(update);
  EXPECT_EQ(update.error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace deltawire::delta
