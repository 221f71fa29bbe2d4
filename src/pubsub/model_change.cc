#include "pubsub/model_change.h"

#include <algorithm>
#include <cstring>

#include "device/block.h"

namespace deltawire::pubsub {
namespace {

struct Compared {
  delta::ChangedTensor change;
  Digest before;
  Status status;
};

}  // namespace

Result<ModelChange> ModelChange::Find(const Checkpoint& base, const NewTensors& now,
                                      const PatchOptions& options) {
  ModelChange out;
  out.base_ = &base;
  DELTAWIRE_ASSIGN(out.inventory_, base.MakeInventory());
  out.grid_ = std::make_unique<delta::GridIndex>(out.inventory_);
  const auto compare = [&](uint32_t t, Compared& result) -> Status {
    const format::InventoryTensor& spec = out.inventory_.tensors[t];
    const auto& boxes = out.grid_->boxes(t);
    const TensorView& old_view = base.tensors()[t].view;
    Bytes bits;
    const bool may_change = now.Changes(spec.name);
    if (may_change) {
      const ByteSpan old_bits = out.BaseBits(t);
      bits.assign(old_bits.begin(), old_bits.end());
      DELTAWIRE_TRY(now.Apply(spec.name, bits));
    }
    const TensorView new_view =
        TensorView::RowMajor(BorrowHost(bits.data(), bits.size()), 0, spec.dtype, spec.shape);
    struct Found {
      delta::ChangedBlock block;
      Digest before;
    };
    std::vector<Found> found(boxes.size());
    options.parallel.For(boxes.size(), [&](uint64_t b) {
      const kernels::Cast cast = device::CastOfWidth(DtypeBytes(spec.dtype));
      const uint64_t key = DigestKey(spec.name);
      const device::Block old_block(options.backends, old_view, boxes[b], cast, key);
      found[b].before = old_block.DigestNow();
      found[b].block.block = static_cast<uint32_t>(b);
      found[b].block.after = found[b].before;
      if (!may_change) return;
      const device::Block new_block(options.backends, new_view, boxes[b], cast, key);
      delta::ChangedBlock& changed = found[b].block;
      changed.after = new_block.DigestNow();
      if (changed.after == found[b].before) return;
      Bytes old_bits(uint64_t{old_block.elements()} * old_block.served_width());
      old_block.Read(old_bits);
      new_block.Compare(*BorrowHost(old_bits.data(), old_bits.size()), 0, changed.change.changed,
                        changed.change.old_bits, changed.change.new_bits);
    });
    result.change.tensor = t;
    for (Found& block : found) {
      result.before += block.before;
      result.change.after += block.block.after;
      if (!block.block.change.empty()) result.change.blocks.push_back(std::move(block.block));
    }
    return {};
  };

  std::vector<Compared> compared(out.inventory_.tensors.size());
  options.parallel.For(compared.size(), [&](uint64_t t) {
    compared[t].status = compare(static_cast<uint32_t>(t), compared[t]);
  });
  for (Compared& tensor : compared) {
    if (!tensor.status) return Fail(std::move(tensor.status).error());
    out.before_ += tensor.before;
    out.after_ += tensor.change.after;
    out.tensors_.push_back(std::move(tensor.change));
  }
  if (const auto promised = now.digest(); promised && *promised != out.after_) {
    return Fail(Code::kCorrupt, "the input leads to state {}, it promises {}", out.after_.Hex(),
                promised->Hex());
  }
  return out;
}

uint64_t ModelChange::changed() const {
  uint64_t count = 0;
  for (const auto& tensor : tensors_) {
    for (const auto& block : tensor.blocks) count += block.change.changed.size();
  }
  return count;
}

uint64_t ModelChange::total() const {
  uint64_t count = 0;
  for (const auto& tensor : inventory_.tensors) count += *ElementCount(tensor.shape);
  return count;
}

ByteSpan ModelChange::BaseBits(uint32_t tensor) const {
  const TensorView& view = base_->tensors()[tensor].view;
  return {static_cast<const uint8_t*>(view.memory->handle()) + view.offset_bytes,
          *ElementCount(view.shape) * DtypeBytes(view.dtype)};
}

void ModelChange::ReadNew(uint32_t tensor, const Box& box, MutableByteSpan bits) const {
  const format::InventoryTensor& spec = inventory_.tensors[tensor];
  const uint64_t width = DtypeBytes(spec.dtype);
  const uint64_t begin = *RunStart(box, spec.shape);
  const uint64_t end = begin + bits.size() / width;
  if (!bits.empty()) std::memcpy(bits.data(), BaseBits(tensor).data() + begin * width, bits.size());
  for (const delta::ChangedBlock& block : tensors_[tensor].blocks) {
    const Box& at = grid_->boxes(tensor)[block.block];
    const uint64_t start = *RunStart(at, spec.shape);
    if (start >= end || start + ElementCount(at) <= begin) continue;
    const auto& positions = block.change.changed;
    auto i = static_cast<size_t>(
        std::lower_bound(positions.begin(), positions.end(), begin - std::min(begin, start)) -
        positions.begin());
    for (; i < positions.size() && start + positions[i] < end; ++i) {
      std::memcpy(bits.data() + (start + positions[i] - begin) * width,
                  block.change.new_bits.data() + i * width, width);
    }
  }
}

}  // namespace deltawire::pubsub
