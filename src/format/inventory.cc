#include "format/inventory.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "format/binary.h"
#include "format/json.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

constexpr std::string_view kFormat = "deltawire.inventory";
constexpr uint64_t kVersion = 1;
constexpr uint64_t kMaxNameBytes = 1024;
constexpr uint64_t kMaxRuleBytes = 4096;
constexpr std::array<std::string_view, 4> kReservedSuffixes = {".idx", ".val", "@delta_idx", "@delta_val"};
constexpr std::array<std::string_view, 2> kReservedNames = {"__metadata__", "__awex_delta_header__"};
constexpr std::string_view kReservedPrefix = "deltawire.";

// The conditions under which GridBlocks gives blocks, without making them.
bool GridFits(const Shape& shape, const Grid& grid) {
  if (shape.empty()) return grid == Grid{};
  return grid.axis < shape.size() && grid.pieces >= 1 && grid.pieces <= kMaxGridPieces &&
         grid.pieces <= std::max<uint64_t>(1, shape[grid.axis]);
}

Status CheckTensor(const InventoryTensor& tensor) {
  DELTAWIRE_TRY(CheckTensorName(tensor.name));
  for (size_t i = 0; i < tensor.aliases.size(); ++i) {
    DELTAWIRE_TRY(CheckTensorName(tensor.aliases[i]));
    if (i > 0 && tensor.aliases[i - 1] >= tensor.aliases[i]) {
      return Fail(Code::kInvalidArgument, "tensor {}: aliases {} and {} are not in order",
                  Quoted(tensor.name), Quoted(tensor.aliases[i - 1]), Quoted(tensor.aliases[i]));
    }
  }
  if (tensor.shape.size() > kMaxTensorRank) {
    return Fail(Code::kInvalidArgument, "tensor {}: {} dimensions; at most {} are managed",
                Quoted(tensor.name), tensor.shape.size(), kMaxTensorRank);
  }
  const auto elements = ElementCount(tensor.shape);
  if (!elements || *elements > kMaxTensorElements) {
    return Fail(Code::kInvalidArgument, "tensor {}: shape {} has more than {} elements", Quoted(tensor.name),
                ShapeText(tensor.shape), kMaxTensorElements);
  }
  if (!GridFits(tensor.shape, tensor.grid)) {
    return Fail(Code::kInvalidArgument, "tensor {}: a grid of {} pieces along axis {} does not fit shape {}",
                Quoted(tensor.name), tensor.grid.pieces, tensor.grid.axis, ShapeText(tensor.shape));
  }
  if (tensor.cast.empty() || tensor.cast.size() > 64 || !IsUtf8(tensor.cast)) {
    return Fail(Code::kInvalidArgument, "tensor {}: cast {} is not 1 to 64 bytes of UTF-8",
                Quoted(tensor.name), Quoted(tensor.cast));
  }
  return {};
}

nlohmann::json ToJson(const InventoryTensor& tensor) {
  nlohmann::json out = {{"name", tensor.name}, {"dtype", DtypeName(tensor.dtype)}, {"shape", tensor.shape}};
  if (!tensor.aliases.empty()) out["aliases"] = tensor.aliases;
  if (tensor.grid != Grid{}) out["grid"] = {tensor.grid.axis, tensor.grid.pieces};
  if (tensor.cast != "none") out["cast"] = tensor.cast;
  return out;
}

Result<std::vector<uint64_t>> UnsignedArray(const JsonObject& object, std::string_view key) {
  DELTAWIRE_ASSIGN(const nlohmann::json* array, object.Array(key));
  std::vector<uint64_t> values;
  for (const auto& item : *array) {
    if (!item.is_number_unsigned()) {
      return Fail(Code::kCorrupt, "{}[{}]: not an unsigned 64-bit integer", object.Path(key), values.size());
    }
    values.push_back(item.get<uint64_t>());
  }
  return values;
}

Result<InventoryTensor> TensorFromJson(const JsonObject& object) {
  InventoryTensor tensor;
  DELTAWIRE_ASSIGN(tensor.name, object.String("name"));
  DELTAWIRE_ASSIGN(const std::string dtype_name, object.String("dtype"));
  const auto dtype = DtypeFromName(dtype_name);
  if (!dtype) return Fail(Code::kCorrupt, "{}: unknown dtype {}", object.Path("dtype"), Quoted(dtype_name));
  tensor.dtype = *dtype;
  DELTAWIRE_ASSIGN(tensor.shape, UnsignedArray(object, "shape"));
  if (object.Has("aliases")) {
    DELTAWIRE_ASSIGN(const nlohmann::json* aliases, object.Array("aliases"));
    for (const auto& alias : *aliases) {
      if (!alias.is_string())
        return Fail(Code::kCorrupt, "{}: not a list of strings", object.Path("aliases"));
      tensor.aliases.push_back(alias.get<std::string>());
    }
  }
  if (object.Has("grid")) {
    DELTAWIRE_ASSIGN(const std::vector<uint64_t> grid, UnsignedArray(object, "grid"));
    constexpr uint64_t kMax = std::numeric_limits<uint32_t>::max();
    if (grid.size() != 2 || grid[0] > kMax || grid[1] > kMax) {
      return Fail(Code::kCorrupt, "{}: expected [axis, pieces]", object.Path("grid"));
    }
    tensor.grid = {.axis = static_cast<uint32_t>(grid[0]), .pieces = static_cast<uint32_t>(grid[1])};
  }
  if (object.Has("cast")) {
    DELTAWIRE_ASSIGN(tensor.cast, object.String("cast"));
  }
  return tensor;
}

}  // namespace

Status CheckTensorName(std::string_view name) {
  const auto refuse = [name](std::string_view why) {
    return Fail(Code::kInvalidArgument, "tensor name {}: {}", Quoted(name), why);
  };
  if (name.empty()) return refuse("it is empty");
  if (name.size() > kMaxNameBytes) return refuse("it is longer than 1024 bytes");
  if (name.find('\0') != std::string_view::npos) return refuse("it contains NUL");
  if (!IsUtf8(name)) return refuse("it is not UTF-8");
  for (const auto reserved : kReservedNames) {
    if (name == reserved) return refuse("formats that carry weights reserve it");
  }
  if (name.starts_with(kReservedPrefix))
    return refuse("names beginning with \"deltawire.\" are sections of updates");
  for (const auto suffix : kReservedSuffixes) {
    if (name.ends_with(suffix)) {
      return refuse(
          fmt::format("formats that carry changes reserve the ending \"{}\"; rename the tensor", suffix));
    }
  }
  return {};
}

Status CheckInventory(const Inventory& inventory) {
  if (inventory.cast_rule.size() > kMaxRuleBytes || !IsUtf8(inventory.cast_rule)) {
    return Fail(Code::kInvalidArgument, "inventory: cast_rule is not at most {} bytes of UTF-8",
                kMaxRuleBytes);
  }
  if (inventory.tensors.size() > std::numeric_limits<uint32_t>::max()) {
    return Fail(Code::kInvalidArgument, "inventory: {} tensors", inventory.tensors.size());
  }
  std::vector<std::string_view> names;
  for (size_t i = 0; i < inventory.tensors.size(); ++i) {
    const InventoryTensor& tensor = inventory.tensors[i];
    DELTAWIRE_TRY(CheckTensor(tensor));
    if (i > 0 && inventory.tensors[i - 1].name > tensor.name) {
      return Fail(Code::kInvalidArgument, "inventory: tensor {} follows {}; tensors are sorted by name",
                  Quoted(tensor.name), Quoted(inventory.tensors[i - 1].name));
    }
    names.push_back(tensor.name);
    names.insert(names.end(), tensor.aliases.begin(), tensor.aliases.end());
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    return Fail(Code::kInvalidArgument, "inventory: two tensors have the name {}", Quoted(*twice));
  }
  return {};
}

std::string InventoryText(const Inventory& inventory) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const auto& tensor : inventory.tensors) tensors.push_back(ToJson(tensor));
  return CompactText({{"format", kFormat},
                      {"format_version", kVersion},
                      {"cast_rule", inventory.cast_rule},
                      {"tensors", std::move(tensors)}});
}

std::string InventoryHash(const Inventory& inventory) {
  return ToHex(Sha256(AsBytes(InventoryText(inventory))));
}

Result<Inventory> ParseInventory(ByteSpan text) {
  DELTAWIRE_ASSIGN(const nlohmann::json root,
                   ParseJson(text, {.max_bytes = kMaxInventoryBytes}, "inventory"));
  DELTAWIRE_ASSIGN(const JsonObject object, JsonObject::From(root, "inventory"));
  DELTAWIRE_TRY(object.CheckFormat(kFormat, kVersion));
  Inventory inventory;
  DELTAWIRE_ASSIGN(inventory.cast_rule, object.String("cast_rule"));
  DELTAWIRE_ASSIGN(const nlohmann::json* tensors, object.Array("tensors"));
  for (const auto& item : *tensors) {
    DELTAWIRE_ASSIGN(const JsonObject entry,
                     JsonObject::From(item, fmt::format("inventory.tensors[{}]", inventory.tensors.size())));
    DELTAWIRE_ASSIGN(InventoryTensor tensor, TensorFromJson(entry));
    inventory.tensors.push_back(std::move(tensor));
  }
  if (const Status valid = CheckInventory(inventory); !valid)
    return Fail(Code::kCorrupt, "{}", valid.error().message());
  // One text for one inventory: its hash is its identity. This also refuses unknown fields.
  if (const std::string canonical = InventoryText(inventory); canonical != AsText(text)) {
    const auto differ = std::mismatch(canonical.begin(), canonical.end(), text.begin(), text.end(),
                                      [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; });
    return Fail(Code::kCorrupt, "inventory: not in canonical form at byte {}",
                differ.first - canonical.begin());
  }
  return inventory;
}

Result<Bytes> CompressInventory(const Inventory& inventory) {
  const std::string text = InventoryText(inventory);
  Bytes out;
  AppendVarint(text.size(), out);
  const size_t start = out.size();
  uLongf bytes = compressBound(text.size());
  out.resize(start + bytes);
  const int status = compress2(out.data() + start, &bytes, reinterpret_cast<const Bytef*>(text.data()),
                               text.size(), Z_BEST_COMPRESSION);
  if (status != Z_OK) {
    return Fail(Code::kInternal, "zlib status {} while compressing an inventory of {} bytes", status,
                text.size());
  }
  out.resize(start + bytes);
  return out;
}

Result<Inventory> DecompressInventory(ByteSpan compressed) {
  BinaryReader reader(compressed, "compressed inventory");
  DELTAWIRE_ASSIGN(const uint64_t size, reader.VarintUpTo(kMaxInventoryBytes, "size"));
  // Deflate gives at most 1032 bytes for one: refuse a promise that can't be kept before making room for it.
  if (size > 1032 * reader.remaining()) {
    return Fail(Code::kCorrupt, "compressed inventory: {} bytes can't hold the {} they announce",
                reader.remaining(), size);
  }
  Bytes text(size);
  const ByteSpan stream = compressed.subspan(reader.offset());
  uLongf text_bytes = text.size();
  uLong stream_bytes = stream.size();
  const int status = uncompress2(text.data(), &text_bytes, stream.data(), &stream_bytes);
  if (status != Z_OK || text_bytes != size || stream_bytes != stream.size()) {
    return Fail(
        Code::kCorrupt,
        "compressed inventory: zlib status {}, {} of {} bytes inflated, {} of {} used; the stream is damaged",
        status, text_bytes, size, stream_bytes, stream.size());
  }
  return ParseInventory(text);
}

std::optional<uint32_t> FindTensor(const Inventory& inventory, std::string_view name) {
  const auto& tensors = inventory.tensors;
  const auto at =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const InventoryTensor& tensor, std::string_view n) { return tensor.name < n; });
  if (at != tensors.end() && at->name == name) return static_cast<uint32_t>(at - tensors.begin());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& aliases = tensors[i].aliases;
    if (std::find(aliases.begin(), aliases.end(), name) != aliases.end()) return static_cast<uint32_t>(i);
  }
  return std::nullopt;
}

}  // namespace deltawire::format
