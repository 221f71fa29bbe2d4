#include "bench/wire_model.h"

#include <cmath>

#include "bench/random_weights.h"
#include "device/block.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kMatrices = 16;
constexpr uint64_t kColumns = 1024;

format::Inventory MakeInventory(uint64_t elements) {
  format::Inventory inventory{.cast_rule = "BF16 as it is", .tensors = {}};
  const auto add = [&](std::string name, const Shape& shape) {
    inventory.tensors.push_back({.name = std::move(name), .shape = shape, .grid = DefaultGrid(shape)});
  };
  for (uint64_t i = 0; i < kMatrices; ++i) {
    add(fmt::format("layers.{:02}.matrix", i), {elements / kMatrices / kColumns, kColumns});
    add(fmt::format("layers.{:02}.norm", i), {kColumns});
  }
  return inventory;
}

}  // namespace

WireModel::WireModel(uint64_t elements, float lr, const Parallel& parallel)
    : inventory_(MakeInventory(elements)), grid_(inventory_) {
  for (const auto& tensor : inventory_.tensors) {
    old_.push_back(AllocateTensor(Dtype::kBf16, tensor.shape));
    new_.push_back(AllocateTensor(Dtype::kBf16, tensor.shape));
    elements_ += *ElementCount(tensor.shape);
  }
  changes_.resize(inventory_.tensors.size());
  std::vector<Digest> before(changes_.size());
  parallel.For(changes_.size(), [&](uint64_t i) {
    const auto tensor = static_cast<uint32_t>(i);
    Fill(tensor, lr);
    changes_[i].tensor = tensor;
    for (uint32_t b = 0; b < grid_.boxes(tensor).size(); ++b) {
      const device::Block now = At(new_, tensor, b);
      const ByteSpan old_bits = At(old_, tensor, b).HostBits();
      const auto was = BorrowHost(const_cast<uint8_t*>(old_bits.data()), old_bits.size());  // only read
      delta::ChangedBlock block{b, {}, now.DigestNow()};
      now.Compare(*was, 0, block.change.changed, block.change.old_bits, block.change.new_bits);
      changes_[i].after += block.after;
      before[i] += At(old_, tensor, b).DigestNow();
      if (!block.change.empty()) changes_[i].blocks.push_back(std::move(block));
    }
  });
  header_.run = "bench";
  header_.number = 1;
  header_.base = 0;
  header_.writer = "bench";
  header_.inventory = format::InventoryHash(inventory_);
  header_.base_digest = Digest{};
  for (size_t i = 0; i < changes_.size(); ++i) {
    header_.digest += changes_[i].after;
    *header_.base_digest += before[i];
    for (const auto& block : changes_[i].blocks) changed_ += block.change.changed.size();
  }
  std::erase_if(changes_, [](const auto& tensor) { return tensor.blocks.empty(); });
}

void WireModel::Fill(uint32_t tensor, float lr) {
  const bool norm = tensor % 2 == 1;
  const uint32_t matrix = tensor / 2;
  const float place = static_cast<float>(matrix) / (kMatrices - 1);
  const float deviation = norm ? 0.1f : 0.01f * std::pow(5.0f, place);
  NearNormal random(200 + tensor);
  std::vector<float> weights(kColumns);
  std::vector<float> moved(kColumns);
  const auto* old_bits = BytesOf(old_[tensor]).data();
  const auto* new_bits = BytesOf(new_[tensor]).data();
  const uint64_t count = *ElementCount(old_[tensor].shape);
  for (uint64_t first = 0; first < count; first += kColumns) {
    for (uint64_t i = 0; i < kColumns; ++i) {
      weights[i] = (norm ? 1.0f : 0.0f) + deviation * random.Next();
      moved[i] = weights[i] + lr * random.Next();
    }
    const auto round = [&](const std::vector<float>& from, const uint8_t* to) {
      backends_.host->read({from.data(), 0}, kernels::Cast::kF32ToBf16, kColumns,
                           const_cast<uint8_t*>(to) + first * 2);
    };
    round(weights, old_bits);
    round(moved, new_bits);
  }
}

device::Block WireModel::At(const std::vector<TensorView>& views, uint32_t tensor, uint32_t block) const {
  return {backends_, views[tensor], grid_.boxes(tensor)[block], kernels::Cast::kBits16,
          DigestKey(inventory_.tensors[tensor].name)};
}

delta::ClassSource WireModel::source() const {
  const auto bits = [this](uint32_t tensor, const Box& box) {
    return device::Block(backends_, new_[tensor], box, kernels::Cast::kBits16, 0).HostBits();
  };
  delta::ClassSource source;
  source.view = bits;
  source.read = [bits](uint32_t tensor, const Box& box, MutableByteSpan out) -> Status {
    const ByteSpan from = bits(tensor, box);
    std::copy(from.begin(), from.end(), out.begin());
    return {};
  };
  return source;
}

}  // namespace deltawire::bench
