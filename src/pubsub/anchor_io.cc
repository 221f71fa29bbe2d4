#include "pubsub/anchor_io.h"

#include <algorithm>

#include "format/hf_index.h"
#include "tensor/dtype.h"

namespace deltawire::pubsub {
namespace {

uint64_t TensorBytes(const format::InventoryTensor& tensor) {
  return *ElementCount(tensor.shape) * DtypeBytes(tensor.dtype);
}

// The tensors of each file, in inventory order; a file takes tensors until it holds shard_bytes.
std::vector<std::vector<uint32_t>> Shards(const format::Inventory& inventory, uint64_t shard_bytes) {
  std::vector<std::vector<uint32_t>> shards(1);
  uint64_t filled = 0;
  for (uint32_t i = 0; i < inventory.tensors.size(); ++i) {
    const uint64_t bytes = TensorBytes(inventory.tensors[i]);
    if (!shards.back().empty() && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(i);
    filled += bytes;
  }
  return shards;
}

Status WriteShard(sync::AnchorAttempt& anchor, const std::string& name, const format::Inventory& inventory,
                  const std::vector<uint32_t>& tensors, const BoxReader& read) {
  std::vector<format::SafetensorsEntry> entries;
  std::map<std::string, uint32_t> index;
  for (const uint32_t i : tensors) {
    const auto& tensor = inventory.tensors[i];
    entries.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
    index[tensor.name] = i;
  }
  DELTAWIRE_ASSIGN(entries, format::LayoutCheckpoint(std::move(entries)));
  // Older transformers refuse files without this.
  DELTAWIRE_ASSIGN(const Bytes header, format::WriteSafetensorsHeader(entries, {{"format", "pt"}}));
  DELTAWIRE_ASSIGN(const auto file, anchor.CreateFile(name));
  DELTAWIRE_TRY(file->Append(header));
  Bytes bits;
  for (const auto& entry : entries) {
    // Row blocks: whatever the tensor's grid, these follow each other in canonical order.
    const auto boxes = GridBlocks(entry.shape, Grid{});
    for (const Box& box : *boxes) {
      bits.resize(ElementCount(box) * DtypeBytes(entry.dtype));
      DELTAWIRE_TRY(read(index[entry.name], box, bits));
      DELTAWIRE_TRY(file->Append(bits));
    }
  }
  return file->Commit(Condition::kOverwrite);
}

}  // namespace

Status WriteAnchorTensors(sync::AnchorAttempt& anchor, const format::Inventory& inventory,
                          const BoxReader& read, uint64_t shard_bytes) {
  const auto shards = Shards(inventory, shard_bytes);
  if (shards.size() == 1) return WriteShard(anchor, "model.safetensors", inventory, shards[0], read);
  format::HfIndex hf_index;
  hf_index.total_size = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    DELTAWIRE_TRY(WriteShard(anchor, name, inventory, shards[i], read));
    for (const uint32_t tensor : shards[i]) {
      hf_index.weight_map[inventory.tensors[tensor].name] = name;
      *hf_index.total_size += TensorBytes(inventory.tensors[tensor]);
    }
  }
  return anchor.PutFile("model.safetensors.index.json", AsBytes(format::HfIndexText(hf_index)));
}

Result<AnchorReader> AnchorReader::Open(Store& store, const format::AnchorManifest& anchor,
                                        const format::Inventory& inventory) {
  AnchorReader reader;
  reader.store_ = &store;
  reader.inventory_ = &inventory;
  reader.places_.resize(inventory.tensors.size());
  std::map<std::string_view, uint32_t> by_name;
  for (uint32_t i = 0; i < inventory.tensors.size(); ++i) by_name[inventory.tensors[i].name] = i;
  std::vector<format::TensorSpec> found;
  for (const auto& file : anchor.files) {
    if (!file.name.ends_with(".safetensors")) continue;
    const std::string object = format::AnchorDir(anchor.number) + "/" + file.name;
    DELTAWIRE_ASSIGN(const Bytes first8, store.GetRange(object, 0, std::min<uint64_t>(8, file.bytes)));
    DELTAWIRE_ASSIGN(const uint64_t header_bytes, format::SafetensorsHeaderBytes(first8, file.bytes));
    DELTAWIRE_ASSIGN(const Bytes prefix, store.GetRange(object, 0, header_bytes));
    const auto header = format::ParseSafetensors(prefix, file.bytes);
    if (!header) return Fail(header.error().Within(object));
    for (const auto& entry : header->entries) {
      found.push_back({entry.name, entry.dtype, entry.shape});
      const auto known = by_name.find(entry.name);
      if (known != by_name.end()) reader.places_[known->second] = {object, header->data_offset + entry.begin};
    }
  }
  DELTAWIRE_TRY(format::CompareTensors(inventory, found, fmt::format("anchor {}", anchor.number),
                                       format::ExtraTensors::kRefuse));
  return reader;
}

Status AnchorReader::ReadBox(uint32_t tensor, const Box& box, MutableByteSpan bits) const {
  const auto& spec = inventory_->tensors[tensor];
  const uint64_t width = DtypeBytes(spec.dtype);
  // The box as runs of canonical elements: a run takes in inner dimensions as long as the box covers them.
  const auto strides = RowMajorStrides(spec.shape);
  uint64_t run = 1;
  size_t outer = box.size.size();
  while (outer > 0 && static_cast<uint64_t>(strides[outer - 1]) == run) {
    run *= box.size[outer - 1];
    --outer;
  }
  uint64_t first = 0;
  for (size_t d = 0; d < box.start.size(); ++d) first += box.start[d] * static_cast<uint64_t>(strides[d]);
  std::vector<uint64_t> at(outer, 0);
  for (uint64_t done = 0; done < bits.size(); done += run * width) {
    DELTAWIRE_ASSIGN(
        const Bytes bytes,
        store_->GetRange(places_[tensor].object, places_[tensor].offset + first * width, run * width));
    std::copy(bytes.begin(), bytes.end(), bits.begin() + static_cast<std::ptrdiff_t>(done));
    for (size_t d = outer; d-- > 0;) {
      first += static_cast<uint64_t>(strides[d]);
      if (++at[d] < box.size[d]) break;
      first -= static_cast<uint64_t>(strides[d]) * at[d];
      at[d] = 0;
    }
  }
  return {};
}

}  // namespace deltawire::pubsub
