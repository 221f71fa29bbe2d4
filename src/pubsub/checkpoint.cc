#include "pubsub/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "format/hf_index.h"
#include "format/safetensors.h"
#include "pubsub/file_io.h"

namespace deltawire::pubsub {
namespace {

namespace fs = std::filesystem;

ByteSpan AllBytes(const Memory& file) {
  return {static_cast<const uint8_t*>(file.handle()), file.size_bytes()};
}

}  // namespace

Status Checkpoint::AddFile(const std::string& file, bool writable) {
  DELTAWIRE_ASSIGN(auto memory, MapFile(file, writable));
  const auto header = format::ParseSafetensors(AllBytes(*memory), memory->size_bytes());
  if (!header) return Fail(header.error().Within(file));
  for (const auto& entry : header->entries) {
    tensors_.push_back({entry.name, TensorView::RowMajor(memory, header->data_offset + entry.begin,
                                                         entry.dtype, entry.shape)});
  }
  files_.push_back(std::move(memory));
  return writable ? FillHoles(file) : Status();
}

Result<Checkpoint> Checkpoint::Open(const std::string& path, bool writable) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  std::error_code error;
  const fs::path root(path);
  const fs::path single = root / "model.safetensors";
  const fs::path index = root / "model.safetensors.index.json";
  if (!fs::is_directory(root, error)) {
    DELTAWIRE_TRY(checkpoint.AddFile(path, writable));
  } else if (fs::exists(single, error)) {
    DELTAWIRE_TRY(checkpoint.AddFile(single.string(), writable));
  } else if (fs::exists(index, error)) {
    DELTAWIRE_ASSIGN(const auto text, MapFile(index.string(), false));
    const auto parsed = format::ParseHfIndex(AllBytes(*text));
    if (!parsed) return Fail(parsed.error().Within(index.string()));
    std::set<std::string> shards;
    for (const auto& [name, shard] : parsed->weight_map) shards.insert(shard);
    std::map<std::string, std::string> found;
    for (const std::string& shard : shards) {
      const size_t first = checkpoint.tensors_.size();
      DELTAWIRE_TRY(checkpoint.AddFile((root / shard).string(), writable));
      for (size_t i = first; i < checkpoint.tensors_.size(); ++i) {
        const std::string& name = checkpoint.tensors_[i].name;
        const auto listed = parsed->weight_map.find(name);
        if (listed == parsed->weight_map.end() || listed->second != shard) {
          return Fail(Code::kCorrupt,
                      "tensor {} is in shard {}, but {} says {}; the checkpoint is not consistent", name,
                      shard, index.string(),
                      listed == parsed->weight_map.end() ? "nothing of it" : listed->second);
        }
        found[name] = shard;
      }
    }
    for (const auto& [name, shard] : parsed->weight_map) {
      if (!found.contains(name)) {
        return Fail(Code::kCorrupt,
                    "tensor {} should be in shard {} by {}, but is not; the checkpoint is incomplete", name,
                    shard, index.string());
      }
    }
  } else {
    return Fail(
        Code::kNotFound,
        "{} has neither model.safetensors nor model.safetensors.index.json; give a safetensors file or a "
        "Hugging Face checkpoint folder",
        path);
  }
  std::sort(checkpoint.tensors_.begin(), checkpoint.tensors_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return checkpoint;
}

const TensorView* Checkpoint::Find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const auto& tensor, std::string_view key) { return tensor.name < key; });
  return found != tensors_.end() && found->name == name ? &found->view : nullptr;
}

std::vector<format::TensorSpec> Checkpoint::Specs() const {
  std::vector<format::TensorSpec> specs;
  for (const auto& tensor : tensors_) specs.push_back({tensor.name, tensor.view.dtype, tensor.view.shape});
  return specs;
}

Result<format::Inventory> Checkpoint::MakeInventory() const {
  format::Inventory inventory;
  inventory.cast_rule = "as stored";
  for (const auto& tensor : tensors_) {
    inventory.tensors.push_back({.name = tensor.name,
                                 .aliases = {},
                                 .dtype = tensor.view.dtype,
                                 .shape = tensor.view.shape,
                                 .grid = DefaultGrid(tensor.view.shape),
                                 .cast = "none"});
  }
  if (auto status = format::CheckInventory(inventory); !status) return Fail(status.error().Within(path_));
  return inventory;
}

Status Checkpoint::Sync() const {
  for (const auto& file : files_) DELTAWIRE_TRY(SyncMapping(*file));
  return {};
}

}  // namespace deltawire::pubsub
