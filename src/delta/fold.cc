#include "delta/fold.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace deltawire::delta {

Fold::Fold(const device::Backends& backends, const format::Inventory& inventory, const GridIndex& grid,
           std::vector<ReplicaTensor> tensors, Replica base)
    : backends_(backends),
      inventory_(inventory),
      grid_(grid),
      tensors_(std::move(tensors)),
      base_(std::move(base)) {}

Status Fold::Add(const DecodedUpdate& update) {
  const Digest from = digest();
  DELTAWIRE_TRY(base_.Stage(update));
  if (from != base_digest() && from != digest() &&
      std::find(between_.begin(), between_.end(), from) == between_.end()) {
    between_.push_back(from);
  }
  for (const DecodedBlock& block : update.blocks) {
    if (block.dense) dense_.emplace(block.members.front().tensor, block.members.front().block);
  }
  return {};
}

device::Block Fold::At(uint32_t tensor, uint32_t block) const {
  const TensorView& view = tensors_[tensor].views.front();
  return {backends_, view, grid_.boxes(tensor)[block], device::CastOfWidth(DtypeBytes(view.dtype)),
          DigestKey(inventory_.tensors[tensor].name)};
}

void Fold::ReadFolded(uint32_t tensor, uint32_t block, MutableByteSpan out) const {
  const auto staged = base_.staged().find({tensor, block});
  if (staged != base_.staged().end() && staged->second.dense) {
    std::memcpy(out.data(), staged->second.new_bits.data(), out.size());
    return;
  }
  At(tensor, block).Read(out);
  if (staged == base_.staged().end()) return;
  const uint32_t width = DtypeBytes(inventory_.tensors[tensor].dtype);
  const auto& [positions, bits] = std::tie(staged->second.positions, staged->second.new_bits);
  for (size_t i = 0; i < positions.size(); ++i) {
    std::memcpy(out.data() + uint64_t{positions[i]} * width, bits.data() + i * width, width);
  }
}

ChangedBlock Fold::Changed(uint32_t tensor, uint32_t block, const StagedBlock& staged, bool absolute) const {
  ChangedBlock out;
  out.block = block;
  out.after = staged.after;
  BlockChange& change = out.change;
  const uint32_t width = DtypeBytes(inventory_.tensors[tensor].dtype);
  if (staged.dense || (absolute && dense_.contains({tensor, block}))) {
    change.dense = true;
    change.dense_bits.resize(ElementCount(grid_.boxes(tensor)[block]) * width);
    ReadFolded(tensor, block, change.dense_bits);
    return out;
  }
  if (absolute) {
    // Also what came back: a reader on the way may hold another value.
    change.changed = staged.positions;
    change.old_bits = staged.old_bits;
    change.new_bits = staged.new_bits;
    return out;
  }
  for (size_t i = 0; i < staged.positions.size(); ++i) {
    const auto* was = staged.old_bits.data() + i * width;
    const auto* now = staged.new_bits.data() + i * width;
    if (std::memcmp(was, now, width) == 0) continue;
    change.changed.push_back(staged.positions[i]);
    change.old_bits.insert(change.old_bits.end(), was, was + width);
    change.new_bits.insert(change.new_bits.end(), now, now + width);
  }
  return out;
}

Result<EncodedUpdate> Fold::Encode(format::UpdateHeader header, EncodeOptions options,
                                   const Parallel& parallel) const {
  const bool absolute = options.coding == codec::Coding::kAbsolute;
  header.base_digest = base_digest();
  header.digest = digest();
  if (absolute) {
    if (between_.size() > format::kMostMoreBases) {
      return Fail(
          Code::kInvalidArgument,
          "an absolute fold starts from at most {} states, these updates have {}; fold fewer at a time",
          format::kMostMoreBases + 1, between_.size() + 1);
    }
    header.more_bases = between_;
  }
  std::vector<ChangedTensor> tensors;
  for (const auto& [place, staged] : base_.staged()) {
    ChangedBlock block = Changed(place.first, place.second, staged, absolute);
    if (block.change.empty()) continue;
    if (tensors.empty() || tensors.back().tensor != place.first) {
      Digest after = base_.TensorDigest(place.first);
      for (auto at = base_.staged().lower_bound({place.first, 0});
           at != base_.staged().end() && at->first.first == place.first; ++at) {
        after += at->second.after - at->second.before;
      }
      tensors.push_back({place.first, {}, after});
    }
    tensors.back().blocks.push_back(std::move(block));
  }
  options.source.view = nullptr;
  options.source.read = [this](uint32_t tensor, const Box& box, MutableByteSpan out) -> Status {
    if (const auto block = grid_.Find(tensor, box)) {
      ReadFolded(tensor, *block, out);
    } else {
      // A sample, from which classes are chosen: the base's bits differ little.
      const TensorView& view = tensors_[tensor].views.front();
      device::Block(backends_, view, box, device::CastOfWidth(DtypeBytes(view.dtype)),
                    DigestKey(inventory_.tensors[tensor].name))
          .Read(out);
    }
    return {};
  };
  return EncodeUpdate(header, inventory_, grid_, tensors, options, parallel);
}

}  // namespace deltawire::delta
