// Where the objects of a run are: names relative to the run's root in a store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deltawire::format {

// Numbers have at least eight digits, so that names sort by number up to
// 99,999,999.
//   manifests/00000042.json
std::string ManifestName(uint64_t number);
//   updates/00000042/ATTEMPT-part-00003.safetensors
std::string UpdateName(uint64_t number, std::string_view attempt, uint32_t part);
//   updates/00000042/ATTEMPT-digests.bin
std::string DigestTableName(uint64_t number, std::string_view attempt);
//   anchors/00000040
std::string AnchorDir(uint64_t number);
//   anchors/00000040/manifest.json
std::string AnchorManifestName(uint64_t number);
//   inventory-HASH.json
std::string InventoryName(std::string_view hash);
// The number of a name that ManifestName (AnchorManifestName) makes; nullopt for any other name.
std::optional<uint64_t> NumberFromManifestName(std::string_view name);
std::optional<uint64_t> NumberFromAnchorManifestName(std::string_view name);

}  // namespace deltawire::format
