#include "format/hf_index.h"

#include <algorithm>
#include <utility>

#include "format/json.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

// One component, so that a hostile index can't name a file outside the checkpoint's folder. Laxer than object
// names: people give files odd names.
bool IsShardName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) {
           return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
         });
}

}  // namespace

Result<HfIndex> ParseHfIndex(ByteSpan text) {
  DELTAWIRE_ASSIGN(const nlohmann::json root,
                   ParseJson(text, {.max_bytes = kMaxHfIndexBytes}, "checkpoint index"));
  DELTAWIRE_ASSIGN(const JsonObject object, JsonObject::From(root, "checkpoint index"));
  HfIndex index;
  DELTAWIRE_TRY(object.Object("weight_map"));
  for (const auto& [name, shard] : root["weight_map"].items()) {
    if (!shard.is_string()) {
      return Fail(Code::kCorrupt, "checkpoint index: tensor {}: shard is not a string", Quoted(name));
    }
    const auto& file = shard.get_ref<const std::string&>();
    if (!IsShardName(file)) {
      return Fail(
          Code::kCorrupt,
          "checkpoint index: tensor {}: shard {} is not a plain file name inside the checkpoint's folder",
          Quoted(name), Quoted(file));
    }
    index.weight_map.emplace(name, file);
  }
  if (!object.Has("metadata") || root["metadata"].is_null()) return index;
  DELTAWIRE_TRY(object.Object("metadata"));
  for (const auto& [key, value] : root["metadata"].items()) {
    if (value.is_string()) index.metadata.emplace(key, value.get<std::string>());
    if (!value.is_number_unsigned()) continue;
    if (key == "total_size") index.total_size = value.get<uint64_t>();
    if (key == "total_parameters") index.total_parameters = value.get<uint64_t>();
  }
  return index;
}

std::string HfIndexText(const HfIndex& index) {
  nlohmann::json root = {{"metadata", index.metadata}, {"weight_map", index.weight_map}};
  if (index.total_size) root["metadata"]["total_size"] = *index.total_size;
  if (index.total_parameters) root["metadata"]["total_parameters"] = *index.total_parameters;
  return root.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace deltawire::format
