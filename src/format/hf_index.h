// model.safetensors.index.json of a sharded Hugging Face checkpoint: text <-> struct.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace deltawire::format {

inline constexpr uint64_t kMaxHfIndexBytes = 100'000'000;

struct HfIndex {
  std::map<std::string, std::string>
      weight_map;  // tensor -> shard: a file name inside the checkpoint's folder
  // metadata.total_size and .total_parameters when they are exact unsigned integers; claims, never to be
  // trusted.
  std::optional<uint64_t> total_size;
  std::optional<uint64_t> total_parameters;
  // The members of metadata whose values are strings; all others are ignored.
  std::map<std::string, std::string> metadata;

  friend bool operator==(const HfIndex&, const HfIndex&) = default;
};

// kCorrupt when the text is not such an index, repeats a tensor or names a shard outside its own folder.
// Whether shards and weight_map agree is the caller's to check, in both directions.
Result<HfIndex> ParseHfIndex(ByteSpan text);

// Sorted keys, two-space indentation, final newline. Names must be UTF-8 without NUL.
std::string HfIndexText(const HfIndex& index);

}  // namespace deltawire::format
