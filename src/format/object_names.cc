#include "format/object_names.h"

#include <fmt/format.h>

#include "format/text.h"

namespace deltawire::format {
namespace {

std::string Padded(uint64_t number) { return fmt::format("{:08}", number); }

// The number between prefix and suffix, if `spell` writes it exactly so.
std::optional<uint64_t> NumberBetween(std::string_view name, std::string_view prefix, std::string_view suffix,
                                      std::string (*spell)(uint64_t)) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) {
    return std::nullopt;
  }
  std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  const auto number = DecimalFromText(digits);
  if (!number || spell(*number) != name) return std::nullopt;
  return number;
}

}  // namespace

std::string ManifestName(uint64_t number) { return fmt::format("manifests/{}.json", Padded(number)); }
std::string UpdateName(uint64_t number, std::string_view attempt, uint32_t part) {
  return fmt::format("updates/{}/{}-part-{:05}.safetensors", Padded(number), attempt, part);
}
std::string DigestTableName(uint64_t number, std::string_view attempt) {
  return fmt::format("updates/{}/{}-digests.bin", Padded(number), attempt);
}
std::string AnchorDir(uint64_t number) { return fmt::format("anchors/{}", Padded(number)); }
std::string AnchorManifestName(uint64_t number) { return AnchorDir(number) + "/manifest.json"; }
std::string InventoryName(std::string_view hash) { return fmt::format("inventory-{}.json", hash); }

std::optional<uint64_t> NumberFromManifestName(std::string_view name) {
  return NumberBetween(name, "manifests/", ".json", ManifestName);
}
std::optional<uint64_t> NumberFromAnchorManifestName(std::string_view name) {
  return NumberBetween(name, "anchors/", "/manifest.json", AnchorManifestName);
}

}  // namespace deltawire::format
