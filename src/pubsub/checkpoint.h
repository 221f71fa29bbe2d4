// Safetensors checkpoints on disk, mapped: a file, or a Hugging Face folder with one or several shards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "format/inventory.h"
#include "tensor/tensor_view.h"

namespace deltawire::pubsub {

struct CheckpointTensor {
  std::string name;
  TensorView view;
};

class Checkpoint {
 public:
  // path: a .safetensors file, or a folder with model.safetensors or model.safetensors.index.json. Only
  // headers are read. writable maps the files shared for writing and fills their holes. kNotFound; kNoSpace;
  // kCorrupt when a header is bad or index and shards disagree, naming the tensor or shard.
  static Result<Checkpoint> Open(const std::string& path, bool writable = false);

  const std::string& path() const { return path_; }
  // Sorted by name.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  const TensorView* Find(std::string_view name) const;
  std::vector<format::TensorSpec> Specs() const;
  // An inventory of exactly these tensors, served as they are, on default grids.
  Result<format::Inventory> MakeInventory() const;
  // Writes the dirty pages of a writable checkpoint back.
  Status Sync() const;

 private:
  Status AddFile(const std::string& file, bool writable);

  std::string path_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<std::shared_ptr<Memory>> files_;
};

}  // namespace deltawire::pubsub
