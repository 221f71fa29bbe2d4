// A model at successive versions with weights as trained ones have them, and a receiver: for tests of
// updates.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "codec/ordinal.h"
#include "delta/encode.h"
#include "delta/replica.h"

namespace deltawire::delta {

struct TestModel {
  device::Backends backends = device::HostBackends();
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
    return device::Block(backends, view, grid->boxes(t)[block], device::CastOfWidth(DtypeBytes(view.dtype)),
                         DigestKey(inventory.tensors[t].name))
        .DigestNow();
  }
  Digest StateDigest(const std::vector<Bytes>& state) const {
    Digest digest;
    for (const auto [tensor, block] : grid->places()) digest += DigestOf(tensor, block, state);
    return digest;
  }
};

inline double Uniform(Rng& rng) { return static_cast<double>(rng.Next() >> 11) * 0x1p-53; }

// The publisher's versions (model_) and one receiver (engine_, replica_).
class UpdateTest : public testing::Test {
 protected:
  explicit UpdateTest(std::vector<format::InventoryTensor> tensors_of_model) {
    RecordProperty("seed", std::to_string(kSeed));
    auto& tensors = model_.inventory.tensors;
    tensors = std::move(tensors_of_model);
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
    auto attached = Replica::Attach(model_.backends, model_.inventory, *model_.grid, tensors, Parallel(2));
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

  std::vector<ChangedTensor> Compare(const std::vector<Bytes>& next, bool dense = false,
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
    return tensors;
  }

  Bytes Encode(const std::vector<Bytes>& next, codec::Coding coding, bool dense = false,
               double uncertain = 0) {
    return Encode(next, coding, Compare(next, dense, uncertain));
  }
  Bytes Encode(const std::vector<Bytes>& next, codec::Coding coding,
               const std::vector<ChangedTensor>& tensors) {
    format::UpdateHeader header;
    header.run = "run";
    header.number = ++number_;
    header.base = number_ - 1;
    header.writer = "w";
    header.inventory = format::InventoryHash(model_.inventory);
    header.base_digest = model_.StateDigest(model_.bits);
    header.digest = model_.StateDigest(next);
    EncodeOptions options{.coding = coding, .most_joint_elements = most_joint_elements_, .source = {}};
    options.source.read = [&](uint32_t t, const Box& box, MutableByteSpan out) -> Status {
      const TensorView view = model_.View(t, next);
      device::Block(model_.backends, view, box, device::CastOfWidth(DtypeBytes(view.dtype)), 0).Read(out);
      return {};
    };
    auto update = EncodeUpdate(header, model_.inventory, *model_.grid, tensors, options, Parallel(2));
    EXPECT_TRUE(update) << update.error().message();
    return update->Join();
  }
  Bytes Advance(double density, codec::Coding coding, bool dense = false, double uncertain = 0) {
    std::vector<Bytes> next = Change(density);
    Bytes file = Encode(next, coding, dense, uncertain);
    model_.bits = std::move(next);
    return file;
  }

  format::BlockTable TableOf(const Bytes& file) const {
    return format::ReadTable(format::ParseUpdate(file).value(), model_.inventory).value();
  }

  Status Stage(const Bytes& file) {
    DELTAWIRE_ASSIGN(const auto decoded, DecodeUpdate(file, model_.inventory, *model_.grid, Parallel(2)));
    return replica_->Stage(decoded);
  }

  static constexpr uint64_t kSeed = 30;
  SeededRng rng_{kSeed};
  TestModel model_;
  std::vector<Bytes> engine_;
  std::unique_ptr<Replica> replica_;
  uint64_t number_ = 0;
  uint64_t most_joint_elements_ = kMaxBlockElements;
};

}  // namespace deltawire::delta
