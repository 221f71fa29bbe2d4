#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "format/inventory.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

constexpr size_t kShown = 10;

// Counts everything, keeps the first few for the message.
class Findings {
 public:
  explicit Findings(std::string_view kind) : kind_(kind) {}

  void Add(std::string text) {
    if (shown_.size() < kShown) shown_.push_back(std::move(text));
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  void AppendTo(std::string& out) const {
    if (count_ == 0) return;
    if (!out.empty()) out += "; ";
    out += fmt::format("{} {}: ", count_, kind_);
    for (size_t i = 0; i < shown_.size(); ++i) out += (i ? ", " : "") + shown_[i];
    if (count_ > shown_.size()) out += ", ...";
  }

 private:
  std::string_view kind_;
  uint64_t count_ = 0;
  std::vector<std::string> shown_;
};

std::string TypeText(Dtype dtype, const Shape& shape) {
  return fmt::format("{} {}", DtypeName(dtype), ShapeText(shape));
}

std::string GridText(const Grid& grid) { return fmt::format("grid {}x{}", grid.axis, grid.pieces); }

// How found differs from expected, as "NAME is X, expected Y"; empty when it doesn't.
std::string Difference(const InventoryTensor& expected, const InventoryTensor& found) {
  const auto say = [&](const std::string& is, const std::string& should) {
    return fmt::format("{} is {}, expected {}", Quoted(expected.name), is, should);
  };
  if (expected.dtype != found.dtype || expected.shape != found.shape) {
    return say(TypeText(found.dtype, found.shape), TypeText(expected.dtype, expected.shape));
  }
  if (expected.grid != found.grid) return say(GridText(found.grid), GridText(expected.grid));
  if (expected.cast != found.cast) return say("cast " + Quoted(found.cast), "cast " + Quoted(expected.cast));
  if (expected.aliases != found.aliases) {
    return say(fmt::format("tied to {} names", found.aliases.size()),
               fmt::format("the {} of the inventory", expected.aliases.size()));
  }
  return "";
}

Status Report(std::string_view found_what, const Findings& missing, const Findings& extra,
              const Findings& different) {
  std::string text;
  missing.AppendTo(text);
  extra.AppendTo(text);
  different.AppendTo(text);
  if (text.empty()) return {};
  return Fail(Code::kMismatch, "{}: tensors differ from the inventory: {}; both must describe the same model",
              found_what, text);
}

}  // namespace

Status CompareInventories(const Inventory& expected, const Inventory& found, std::string_view found_what) {
  Findings missing("missing"), extra("extra"), different("different");
  auto e = expected.tensors.begin();
  auto f = found.tensors.begin();
  while (e != expected.tensors.end() || f != found.tensors.end()) {
    if (f == found.tensors.end() || (e != expected.tensors.end() && e->name < f->name)) {
      missing.Add(Quoted((e++)->name));
    } else if (e == expected.tensors.end() || f->name < e->name) {
      extra.Add(Quoted((f++)->name));
    } else {
      if (std::string text = Difference(*e++, *f++); !text.empty()) different.Add(std::move(text));
    }
  }
  if (expected.cast_rule != found.cast_rule) {
    different.Add(
        fmt::format("cast_rule is {}, expected {}", Quoted(found.cast_rule), Quoted(expected.cast_rule)));
  }
  return Report(found_what, missing, extra, different);
}

Status CompareTensors(const Inventory& expected, std::span<const TensorSpec> found,
                      std::string_view found_what, ExtraTensors extra_tensors) {
  std::unordered_map<std::string_view, size_t> owner;
  for (size_t i = 0; i < expected.tensors.size(); ++i) {
    owner.emplace(expected.tensors[i].name, i);
    for (const auto& alias : expected.tensors[i].aliases) owner.emplace(alias, i);
  }
  Findings missing("missing"), extra("extra"), different("different");
  std::vector<bool> present(expected.tensors.size(), false);
  for (const auto& spec : found) {
    const auto at = owner.find(spec.name);
    if (at == owner.end()) {
      if (extra_tensors == ExtraTensors::kRefuse) extra.Add(Quoted(spec.name));
      continue;
    }
    const InventoryTensor& tensor = expected.tensors[at->second];
    present[at->second] = true;
    if (tensor.dtype != spec.dtype || tensor.shape != spec.shape) {
      different.Add(fmt::format("{} is {}, expected {}", Quoted(spec.name), TypeText(spec.dtype, spec.shape),
                                TypeText(tensor.dtype, tensor.shape)));
    }
  }
  for (size_t i = 0; i < present.size(); ++i) {
    if (!present[i]) missing.Add(Quoted(expected.tensors[i].name));
  }
  return Report(found_what, missing, extra, different);
}

}  // namespace deltawire::format
