// The inventory of a run: which canonical tensors it serves, in which dtypes, cut how
// (docs/formats/inventory.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace deltawire::format {

inline constexpr uint64_t kMaxInventoryBytes = 64u << 20;
inline constexpr uint64_t kMaxTensorRank = 8;
// Per tensor; with kMaxBlockElements this bounds the blocks of a grid before it is expanded.
inline constexpr uint64_t kMaxTensorElements = uint64_t{1} << 40;

struct InventoryTensor {
  std::string name;
  std::vector<std::string> aliases = {};  // other names of the same storage (ties), sorted
  Dtype dtype = Dtype::kBf16;             // served
  Shape shape = {};
  Grid grid = {};
  std::string cast = "none";  // from the trainer's dtype to the served one: "f32->bf16", or "none"

  friend bool operator==(const InventoryTensor&, const InventoryTensor&) = default;
};

struct Inventory {
  std::string cast_rule;                 // the rule that chose the casts, in words
  std::vector<InventoryTensor> tensors;  // sorted by name (bytes)

  friend bool operator==(const Inventory&, const Inventory&) = default;
};

// kInvalidArgument, naming it, for a name that can't be a canonical tensor's: empty, not UTF-8, with NUL,
// above 1024 bytes, "__metadata__", "__awex_delta_header__", beginning with "deltawire." or ending in .idx,
// .val, @delta_idx or
// @delta_val (formats that deltawire exports to would misread those).
Status CheckTensorName(std::string_view name);

// Everything that a parsed inventory satisfies: names valid, sorted and unique with all aliases, shapes
// within the limits, grids that fit them. kInvalidArgument naming the tensor.
Status CheckInventory(const Inventory& inventory);

// The one byte form (compact JSON, sorted keys) of an inventory that CheckInventory accepts.
std::string InventoryText(const Inventory& inventory);
// SHA-256 of InventoryText, 64 hexadecimal digits: the inventory's identity.
std::string InventoryHash(const Inventory& inventory);
// kCorrupt unless text is exactly the InventoryText of a valid inventory; kUnsupported for another format
// version.
Result<Inventory> ParseInventory(ByteSpan text);

// zlib of InventoryText after its size (LEB128): how standalone patches carry it.
Result<Bytes> CompressInventory(const Inventory& inventory);
// Total: at most kMaxInventoryBytes are inflated.
Result<Inventory> DecompressInventory(ByteSpan compressed);

// Index of a tensor by canonical name or alias; nullopt when the inventory has none. `FindTensor` is a binary
// search over canonical names plus a scan of aliases: build a map for bulk look-ups.
std::optional<uint32_t> FindTensor(const Inventory& inventory, std::string_view name);

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kBf16;
  Shape shape = {};
};

enum class ExtraTensors : uint8_t { kRefuse, kAllow };

// One kMismatch error that counts and names (up to ten of each) what is missing, extra or different;
// `found_what` says whose tensors `found` are ("engine", "checkpoint /path"). Cast, grids and cast_rule are
// compared as well.
Status CompareInventories(const Inventory& expected, const Inventory& found, std::string_view found_what);
// The same for a list of tensors. A tensor is present when its name or one of its aliases is; each such entry
// must have its dtype and shape.
Status CompareTensors(const Inventory& expected, std::span<const TensorSpec> found,
                      std::string_view found_what, ExtraTensors extra);

}  // namespace deltawire::format
