#include <charconv>
#include <set>
#include <utility>

#include "sync/catalog.h"
#include "sync/catalog_writer.h"

namespace deltawire::sync {
namespace {

std::optional<uint64_t> Number(std::string_view digits) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

struct UpdateObject {
  uint64_t number = 0;
  std::string attempt;
};

// nullopt for names that no writer gives: what is not ours stays.
std::optional<UpdateObject> ParseUpdateObject(std::string_view name) {
  constexpr std::string_view kFolder = "updates/";
  const auto slash = name.rfind('/');
  if (!name.starts_with(kFolder) || slash < kFolder.size()) return std::nullopt;
  const auto number = Number(name.substr(kFolder.size(), slash - kFolder.size()));
  const auto file = name.substr(slash + 1);
  if (!number) return std::nullopt;
  for (const std::string_view kind : {"-digests.bin", "-part-"}) {
    const auto at = file.rfind(kind);
    if (at == std::string_view::npos) continue;
    const auto attempt = file.substr(0, at);
    if (format::DigestTableName(*number, attempt) == name) return UpdateObject{*number, std::string(attempt)};
    const auto rest = file.substr(at + kind.size());
    const auto part = Number(rest.substr(0, rest.find('.')));
    if (part && *part <= UINT32_MAX &&
        format::UpdateName(*number, attempt, static_cast<uint32_t>(*part)) == name)
      return UpdateObject{*number, std::string(attempt)};
  }
  return std::nullopt;
}

std::set<std::string> ListedObjects(const format::Manifest& manifest) {
  std::set<std::string> names;
  for (const auto& part : manifest.parts) names.insert(part.object.name);
  if (manifest.tensor_digests) names.insert(manifest.tensor_digests->name);
  return names;
}

}  // namespace

Result<std::vector<std::string>> CatalogWriter::OldUnlistedUpdates(int64_t newest_unix_nanos) {
  Catalog catalog(store_, options_.run);
  DELTAWIRE_ASSIGN(const auto infos, store_->List("updates/"));
  std::vector<std::string> garbage;
  // Sorted by name, so the objects of a version follow each other.
  std::optional<uint64_t> current;
  std::set<std::string> listed;
  bool readable = false;
  for (const auto& info : infos) {
    const auto object = ParseUpdateObject(info.name);
    if (!object || info.modified_unix_nanos > newest_unix_nanos) continue;
    if (open_attempt_ == object->attempt ||
        (pending_ && pending_->record.manifest.attempt == object->attempt))
      continue;
    if (current != object->number) {
      current = object->number;
      const auto record = catalog.Load(object->number);
      if (!record && record.error().code() == Code::kIo) return Fail(record.error());
      // A manifest that is there but unreadable may list anything.
      readable = record || record.error().code() == Code::kNotFound;
      listed = record ? ListedObjects(record->manifest) : std::set<std::string>();
    }
    if (readable && !listed.contains(info.name)) garbage.push_back(info.name);
  }
  return garbage;
}

Result<std::vector<std::string>> CatalogWriter::OldUnlistedAnchorFiles(int64_t newest_unix_nanos) {
  Catalog catalog(store_, options_.run);
  DELTAWIRE_ASSIGN(const auto numbers, catalog.Anchors());
  const std::set<uint64_t> complete(numbers.begin(), numbers.end());
  DELTAWIRE_ASSIGN(const auto infos, store_->List("anchors/"));
  std::vector<std::string> garbage;
  for (const auto& info : infos) {
    const auto folder = std::string_view(info.name).substr(0, info.name.rfind('/'));
    const auto number = Number(folder.substr(folder.find('/') + 1));
    if (!number || format::AnchorDir(*number) != folder || info.modified_unix_nanos > newest_unix_nanos)
      continue;
    if (open_anchor_ != *number && !complete.contains(*number)) garbage.push_back(info.name);
  }
  return garbage;
}

Result<uint64_t> CatalogWriter::CollectGarbage(int64_t min_age_ms) {
  DELTAWIRE_TRY(CheckNotFenced());
  if (!store_->capabilities().modification_times)
    return Fail(Code::kUnsupported, "{} tells no modification times, so nothing can be called old",
                store_->Describe());
  const int64_t newest_unix_nanos = clock_->UnixNanos() - min_age_ms * 1'000'000;
  DELTAWIRE_ASSIGN(auto garbage, OldUnlistedUpdates(newest_unix_nanos));
  DELTAWIRE_ASSIGN(const auto anchor_files, OldUnlistedAnchorFiles(newest_unix_nanos));
  garbage.insert(garbage.end(), anchor_files.begin(), anchor_files.end());
  for (const auto& name : garbage) DELTAWIRE_TRY(store_->Delete(name));
  DELTAWIRE_ASSIGN(const auto temporary, store_->CleanTemporary(min_age_ms));
  return garbage.size() + temporary;
}

}  // namespace deltawire::sync
