#include "delta/open_update.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "format/text.h"

namespace deltawire::delta {
namespace {

using format::Quoted;

// Where the blocks of a tensor begin in it: ascending, like the blocks.
Result<std::vector<uint64_t>> RunStarts(const format::InventoryTensor& tensor,
                                        const std::vector<Box>& boxes) {
  std::vector<uint64_t> starts;
  for (const Box& box : boxes) {
    const auto start = RunStart(box, tensor.shape);
    if (!start || (!starts.empty() && *start <= starts.back())) {
      return Fail(
          Code::kUnsupported,
          "tensor {}: block {} of its grid is not a run of its elements; open coding lists positions in "
          "whole tensors: use another coding",
          Quoted(tensor.name), BoxText(box));
    }
    starts.push_back(*start);
  }
  return starts;
}

// Both lists of a block, merged: the new value is what counts. Positions in the tensor.
void AppendChange(const BlockChange& change, uint64_t start, uint64_t elements, uint32_t width,
                  std::vector<uint64_t>& positions, Bytes& values) {
  if (change.dense) {
    for (uint64_t i = 0; i < elements; ++i) positions.push_back(start + i);
    values.insert(values.end(), change.dense_bits.begin(), change.dense_bits.end());
    return;
  }
  size_t c = 0;
  size_t u = 0;
  const auto take = [&](uint32_t position, const Bytes& bits, size_t& at) {
    positions.push_back(start + position);
    const uint8_t* from = bits.data() + at * width;
    values.insert(values.end(), from, from + width);
    ++at;
  };
  while (c < change.changed.size() || u < change.uncertain.size()) {
    const bool from_changed = u == change.uncertain.size() ||
                              (c < change.changed.size() && change.changed[c] < change.uncertain[u]);
    if (from_changed) {
      take(change.changed[c], change.new_bits, c);
    } else {
      take(change.uncertain[u], change.uncertain_new, u);
    }
  }
}

Status CutIntoBlocks(const format::OpenTensor& column, format::IndexEncoding encoding, uint32_t tensor,
                     const format::InventoryTensor& spec, const std::vector<Box>& boxes,
                     std::vector<DecodedBlock>& out) {
  if (column.dtype != spec.dtype) {
    return Fail(Code::kMismatch, "tensor {}: the patch has {} values, the inventory says {}",
                Quoted(spec.name), DtypeName(column.dtype), DtypeName(spec.dtype));
  }
  DELTAWIRE_ASSIGN(const auto starts, RunStarts(spec, boxes));
  DELTAWIRE_ASSIGN(const auto positions, format::PositionsOf(column, encoding, *ElementCount(spec.shape)));
  const uint32_t width = DtypeBytes(spec.dtype);
  for (size_t i = 0; i < positions.size();) {
    const auto block = static_cast<uint32_t>(std::upper_bound(starts.begin(), starts.end(), positions[i]) -
                                             starts.begin() - 1);
    const uint64_t end = block + 1 < starts.size() ? starts[block + 1] : std::numeric_limits<uint64_t>::max();
    DecodedBlock decoded;
    decoded.members = {{tensor, block, 0, static_cast<uint32_t>(ElementCount(boxes[block]))}};
    decoded.changes.width = width;
    const size_t first = i;
    for (; i < positions.size() && positions[i] < end; ++i) {
      decoded.changes.changed.push_back(static_cast<uint32_t>(positions[i] - starts[block]));
    }
    const auto* values = column.values.data();
    decoded.changes.values.assign(values + first * width, values + i * width);
    out.push_back(std::move(decoded));
  }
  return {};
}

}  // namespace

Result<EncodedUpdate> EncodeOpen(const format::UpdateHeader& header, const format::Inventory& inventory,
                                 const GridIndex& grid, const std::vector<ChangedTensor>& tensors,
                                 format::EmbedInventory embed) {
  std::vector<format::OpenColumns> columns;
  std::vector<Digest> digests;
  for (const ChangedTensor& tensor : tensors) {
    const format::InventoryTensor& spec = inventory.tensors[tensor.tensor];
    if (tensor.blocks.empty()) continue;
    const auto& boxes = grid.boxes(tensor.tensor);
    DELTAWIRE_ASSIGN(const auto starts, RunStarts(spec, boxes));
    std::vector<uint64_t> positions;
    format::OpenColumns column{.name = spec.name, .index = {}, .dtype = spec.dtype, .values = {}};
    for (const ChangedBlock& block : tensor.blocks) {
      digests.push_back(block.after);
      AppendChange(block.change, starts[block.block], ElementCount(boxes[block.block]),
                   DtypeBytes(spec.dtype), positions, column.values);
    }
    column.count = positions.size();
    column.index_dtype = format::AppendGaps(positions, column.index);
    // Read back before anybody else does.
    const format::OpenTensor written{spec.name,  column.index_dtype, column.index,
                                     spec.dtype, column.values,      column.count};
    DELTAWIRE_ASSIGN(const auto again,
                     format::PositionsOf(written, format::IndexEncoding::kGap, *ElementCount(spec.shape)));
    if (again != positions) {
      return Fail(Code::kInternal, "tensor {}: open coding does not give back what was encoded",
                  Quoted(spec.name));
    }
    columns.push_back(std::move(column));
  }
  DELTAWIRE_ASSIGN(auto built, format::BuildOpen(header, columns, digests, inventory, embed));
  return EncodedUpdate{std::move(built.frame), std::move(built.data)};
}

Result<DecodedUpdate> DecodeOpen(ByteSpan file, const format::Inventory& inventory, const GridIndex& grid,
                                 const Parallel& parallel) {
  DELTAWIRE_ASSIGN(const format::OpenPatch patch, format::ParseOpenPatch(file));
  if (!patch.header) {
    return Fail(
        Code::kUnsupported,
        "the patch has no header of deltawire's, so nothing says which base it is for; convert it with the "
        "base you know it is for (deltawire convert --base)");
  }
  DecodedUpdate out;
  out.header = *patch.header;
  if (const std::string hash = format::InventoryHash(inventory); hash != out.header.inventory) {
    return Fail(Code::kMismatch, "update {}: made for inventory {}, the one at hand is {}", out.header.number,
                out.header.inventory, hash);
  }
  std::vector<std::vector<DecodedBlock>> blocks(patch.tensors.size());
  std::vector<Status> statuses(patch.tensors.size());
  std::vector<uint32_t> tensors;
  for (const format::OpenTensor& column : patch.tensors) {
    const auto found = std::lower_bound(inventory.tensors.begin(), inventory.tensors.end(), column.name,
                                        [](const auto& spec, const auto& name) { return spec.name < name; });
    if (found == inventory.tensors.end() || found->name != column.name) {
      return Fail(Code::kMismatch, "the patch names tensor {}, which the inventory does not have",
                  Quoted(column.name));
    }
    tensors.push_back(static_cast<uint32_t>(found - inventory.tensors.begin()));
  }
  parallel.For(patch.tensors.size(), [&](uint64_t i) {
    statuses[i] = CutIntoBlocks(patch.tensors[i], patch.encoding, tensors[i], inventory.tensors[tensors[i]],
                                grid.boxes(tensors[i]), blocks[i]);
  });
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (!statuses[i]) return Fail(std::move(statuses[i]).error());
    std::move(blocks[i].begin(), blocks[i].end(), std::back_inserter(out.blocks));
  }
  if (out.blocks.size() != patch.digests.size()) {
    return Fail(Code::kCorrupt, "update {}: it changes {} blocks and has digests of {}", out.header.number,
                out.blocks.size(), patch.digests.size());
  }
  for (size_t i = 0; i < out.blocks.size(); ++i) out.blocks[i].after = patch.digests[i];
  return out;
}

}  // namespace deltawire::delta
