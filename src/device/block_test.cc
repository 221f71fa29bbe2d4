#include "device/block.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace deltawire::device {
namespace {

const Backends kRef = {&kernels::RefTable(), &kernels::RefHostTable(), nullptr};

// A BF16 tensor of `shape` whose strides are those of a larger buffer, and its logical contents.
struct Case {
  std::string name;
  TensorView view;
  std::vector<uint16_t> logical;
};

std::vector<Case> Cases(const Shape& shape) {
  SeededRng rng(7);
  const uint64_t count = *ElementCount(shape);
  std::vector<Case> cases;
  const auto add = [&](std::string name, std::vector<int64_t> strides, uint64_t storage, uint64_t offset) {
    const auto memory = AllocateHost(storage * 2);
    auto* bits = static_cast<uint16_t*>(memory->handle());
    for (uint64_t i = 0; i < storage; ++i) bits[i] = static_cast<uint16_t>(rng.Next());
    Case entry{std::move(name), {memory, offset * 2, Dtype::kBf16, shape, std::move(strides)}, {}};
    const auto canonical = RowMajorStrides(shape);
    for (uint64_t i = 0; i < count; ++i) {
      int64_t at = static_cast<int64_t>(offset);
      uint64_t rest = i;
      for (size_t d = 0; d < shape.size(); ++d) {
        at += static_cast<int64_t>(rest / static_cast<uint64_t>(canonical[d])) * entry.view.strides[d];
        rest %= static_cast<uint64_t>(canonical[d]);
      }
      entry.logical.push_back(bits[at]);
    }
    cases.push_back(std::move(entry));
  };
  const int64_t a = static_cast<int64_t>(shape[0]);
  const int64_t b = static_cast<int64_t>(shape[1]);
  const int64_t c = static_cast<int64_t>(shape[2]);
  add("row-major", {b * c, c, 1}, count, 0);
  add("row-major at an odd offset", {b * c, c, 1}, count + 3, 3);
  add("transposed", {1, a, a * b}, count, 0);
  add("channels last", {b * c, 1, b}, count, 0);
  add("step 2 inside", {2 * b * c, 2 * c, 2}, 2 * count, 1);
  add("padded rows", {b * (c + 3), c + 3, 1}, static_cast<uint64_t>(a * b * (c + 3)), 0);
  add("reversed", {b * c, c, -1}, count, static_cast<uint64_t>(c - 1));
  return cases;
}

TEST(Block, EveryOperationFollowsLogicalOrderWhateverTheStrides) {
  const Shape shape = {3, 5, 4};
  const Box boxes[] = {WholeBox(shape),        {{1, 0, 0}, {2, 5, 4}}, {{0, 1, 0}, {3, 2, 4}},
                       {{0, 0, 1}, {3, 5, 2}}, {{2, 4, 3}, {1, 1, 1}}, {{0, 0, 2}, {3, 1, 1}}};
  const uint64_t key = DigestKey("w");
  for (auto& entry : Cases(shape)) {
    for (const Box& box : boxes) {
      SCOPED_TRACE(entry.name + " " + BoxText(box));
      std::vector<uint16_t> expected;
      Digest digest;
      for (uint64_t x = 0; x < box.size[0]; ++x) {
        for (uint64_t y = 0; y < box.size[1]; ++y) {
          for (uint64_t z = 0; z < box.size[2]; ++z) {
            const uint64_t at = ((box.start[0] + x) * 5 + box.start[1] + y) * 4 + box.start[2] + z;
            expected.push_back(entry.logical[at]);
            kernels::RefTable().digest({&entry.logical[at], 0}, kernels::Cast::kBits16, 1, at * 2, key,
                                       digest.lanes);
          }
        }
      }
      const Block block(kRef, entry.view, box, kernels::Cast::kBits16, key);
      ASSERT_EQ(block.elements(), expected.size());
      const uint64_t bytes = expected.size() * 2;
      std::vector<uint16_t> read(expected.size());
      block.Read({reinterpret_cast<uint8_t*>(read.data()), bytes});
      EXPECT_EQ(read, expected);
      EXPECT_EQ(block.DigestNow(), digest);

      const auto snapshot = AllocateHost(bytes + 6);
      block.CopyTo(*snapshot, 6);
      std::vector<uint32_t> positions;
      Bytes was;
      Bytes now;
      block.Compare(*snapshot, 6, positions, was, now);
      EXPECT_TRUE(positions.empty());

      std::vector<uint32_t> chosen;
      Bytes old_bits;
      Bytes new_bits;
      for (uint32_t i = 0; i < expected.size(); i += 2) {
        chosen.push_back(i);
        AppendLe<uint16_t>(expected[i], old_bits);
        AppendLe<uint16_t>(static_cast<uint16_t>(~expected[i]), new_bits);
      }
      Bytes gathered(old_bits.size());
      block.Gather(chosen, gathered);
      EXPECT_EQ(gathered, old_bits);
      block.Scatter(chosen, new_bits);
      EXPECT_EQ(block.DigestNow(), digest + block.DigestOfChange(chosen, old_bits, new_bits));
      block.Compare(*snapshot, 6, positions, was, now);
      EXPECT_EQ(positions, chosen);
      EXPECT_EQ(was, old_bits);
      EXPECT_EQ(now, new_bits);
      block.Write({reinterpret_cast<const uint8_t*>(expected.data()), bytes});
      EXPECT_EQ(block.DigestNow(), digest);
    }
  }
}

TEST(Block, EmptyAndScalarTensors) {
  const auto memory = AllocateHost(4);
  const TensorView scalar = TensorView::RowMajor(memory, 0, Dtype::kF32, {});
  const Box point = WholeBox({});
  const Block one(kRef, scalar, point, kernels::Cast::kBits32, 1);
  EXPECT_EQ(one.elements(), 1u);
  Bytes out(4, 9);
  one.Read(out);
  EXPECT_EQ(out, Bytes(4, 0));

  const TensorView empty = TensorView::RowMajor(AllocateHost(0), 0, Dtype::kF32, {0, 3});
  const Box whole = WholeBox({0, 3});
  const Block none(kRef, empty, whole, kernels::Cast::kBits32, 1);
  EXPECT_EQ(none.DigestNow(), Digest{});
}

}  // namespace
}  // namespace deltawire::device
