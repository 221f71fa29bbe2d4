#include "bench/changed_model.h"

#include "bench/random_weights.h"
#include "codec/ordinal.h"
#include "device/block.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kTensors = 8;
constexpr uint64_t kColumns = 1024;

format::Inventory MakeInventory(uint64_t elements) {
  format::Inventory inventory{.cast_rule = "BF16 as it is", .tensors = {}};
  const Shape shape{elements / kTensors / kColumns, kColumns};
  for (uint64_t i = 0; i < kTensors; ++i) {
    inventory.tensors.push_back({.name = fmt::format("t{}", i), .shape = shape, .grid = DefaultGrid(shape)});
  }
  return inventory;
}

}  // namespace

ChangedModel::ChangedModel(uint64_t elements, const Parallel& parallel)
    : inventory_(MakeInventory(elements)), grid_(inventory_) {
  changes_.resize(kTensors);
  for (const auto& tensor : inventory_.tensors) {
    views_.push_back(AllocateTensor(Dtype::kBf16, tensor.shape));
  }
  parallel.For(kTensors, [&](uint64_t i) { changes_[i] = Change(static_cast<uint32_t>(i)); });
  header_.run = "bench";
  header_.number = 1;
  header_.base = 0;
  header_.writer = "bench";
  header_.inventory = format::InventoryHash(inventory_);
  header_.base_digest = Digest{};
  for (const auto& tensor : changes_) {
    header_.digest += tensor.after;
    for (const auto& block : tensor.blocks) changed_ += block.change.changed.size();
    for (uint32_t b = 0; b < grid_.boxes(tensor.tensor).size(); ++b) {
      *header_.base_digest +=
          device::Block(backends_, views_[tensor.tensor], grid_.boxes(tensor.tensor)[b],
                        kernels::Cast::kBits16, DigestKey(inventory_.tensors[tensor.tensor].name))
              .DigestNow();
    }
  }
}

uint16_t* ChangedModel::BlockBits(uint32_t tensor, uint32_t block) const {
  const TensorView& view = views_[tensor];
  return static_cast<uint16_t*>(view.memory->handle()) + view.offset_bytes / 2 +
         grid_.boxes(tensor)[block].start[0] * kColumns;
}

delta::ChangedTensor ChangedModel::Change(uint32_t tensor) {
  delta::ChangedTensor out{tensor, {}, {}};
  NearNormal random(100 + tensor);
  const uint64_t key = DigestKey(inventory_.tensors[tensor].name);
  for (uint32_t b = 0; b < grid_.boxes(tensor).size(); ++b) {
    const Box& box = grid_.boxes(tensor)[b];
    const auto count = static_cast<uint32_t>(ElementCount(box));
    uint16_t* bits = BlockBits(tensor, b);
    delta::ChangedBlock block{b, {}, {}};
    BlockChange& change = block.change;
    for (uint32_t i = 0; i < count; ++i) {
      const float weight = 0.02f * random.Next();
      backends_.host->read({&weight, 0}, kernels::Cast::kF32ToBf16, 1, bits + i);
      const uint64_t word = random.Word();
      if (word % 100 != 0) continue;
      const int sign = word >> 60 & 1 ? 1 : -1;
      const int size = (word >> 32) % 10 != 0 ? 1 : 2 + static_cast<int>(word >> 40 & 7) % 7;
      change.changed.push_back(i);
      AppendLe(bits[i], change.old_bits);
      AppendLe(codec::Ordinal(static_cast<uint16_t>(codec::Ordinal(bits[i]) + sign * size)), change.new_bits);
    }
    const device::Block at(backends_, views_[tensor], box, kernels::Cast::kBits16, key);
    block.after = at.DigestNow() + at.DigestOfChange(change.changed, change.old_bits, change.new_bits);
    out.after += block.after;
    out.blocks.push_back(std::move(block));
  }
  return out;
}

}  // namespace deltawire::bench
