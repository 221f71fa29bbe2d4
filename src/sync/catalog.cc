#include "sync/catalog.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "format/digests.h"
#include "sync/latest.h"

namespace deltawire::sync {
namespace {

constexpr uint64_t kStreamPiece = 8u << 20;

// How to get out of a damaged or incomplete version, the same for every object of it.
constexpr std::string_view kRemedy =
    "restore it, or move on to a later version or anchor; nothing of this version was used";

constexpr std::string_view kEmptyRun = "check the location, or wait for the publisher's first version";

std::string Text(const Sha256Digest& digest) { return ToHex(digest); }

std::string VersionText(uint64_t number) { return fmt::format("version {}", number); }

}  // namespace

Result<std::vector<uint64_t>> Catalog::ListNumbers(std::string_view prefix,
                                                   std::optional<uint64_t> (*number_from)(std::string_view)) {
  DELTAWIRE_ASSIGN(const auto infos, store_->List(prefix));
  std::vector<uint64_t> numbers;
  for (const auto& info : infos)
    if (const auto number = number_from(info.name)) numbers.push_back(*number);
  // Names sort by number only up to the padding of the format.
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Result<std::vector<uint64_t>> Catalog::Versions() {
  return ListNumbers("manifests/", format::NumberFromManifestName);
}

Result<std::vector<uint64_t>> Catalog::Anchors() {
  return ListNumbers("anchors/", format::NumberFromAnchorManifestName);
}

Result<uint64_t> Catalog::Newest() {
  DELTAWIRE_ASSIGN(const auto versions, Versions());
  auto newest = versions.empty() ? std::nullopt : std::optional(versions.back());
  // Listings may lag behind (cached mounts). The hint counts only if the manifest that it names is there.
  const auto hint = ReadLatest(*store_);
  if (hint && (!newest || *hint > *newest) && store_->Stat(format::ManifestName(*hint))) newest = hint;
  if (!newest) return Fail(Code::kNotFound, "{} holds no version; {}", store_->Describe(), kEmptyRun);
  return *newest;
}

Result<uint64_t> Catalog::NewestFrom(std::optional<uint64_t> held) {
  const auto hint = ReadLatest(*store_);
  // Without a hint the run may be new, or copied without it: `held` alone would not show a hole above it.
  if (!hint) return Newest();
  uint64_t newest = std::max(*hint, held.value_or(0));
  for (int probe = 0; probe <= kMaxProbes; ++probe) {
    const auto there = store_->Stat(format::ManifestName(newest));
    if (there) {
      ++newest;
      continue;
    }
    if (there.error().code() != Code::kNotFound) return Fail(there.error());
    if (probe == 0) break;
    return newest - 1;
  }
  return Newest();
}

Result<std::string> Catalog::Run() {
  if (run_) return *run_;
  DELTAWIRE_ASSIGN(const auto versions, Versions());
  // The oldest readable one: what was dropped in later can't claim the run.
  std::optional<Error> unreadable;
  for (const auto number : versions) {
    const auto record = LoadUnpinned(number);
    if (record) {
      run_ = record->manifest.run;
      return *run_;
    }
    const auto code = record.error().code();
    if (code == Code::kIo) return Fail(record.error());
    if (code != Code::kNotFound) unreadable = record.error();  // kNotFound: pruned since it was listed
  }
  if (unreadable) return Fail(*unreadable);
  return Fail(Code::kNotFound, "{} holds no version; {}", store_->Describe(), kEmptyRun);
}

Status Catalog::CheckRun(const std::string& run, const std::string& object) {
  DELTAWIRE_ASSIGN(const auto expected, Run());
  if (run == expected) return {};
  return Fail(
      Code::kWrongRun,
      "{} in {} belongs to run \"{}\"; expected run \"{}\"; somebody mixed two runs: remove it, or use "
      "another location for each run",
      object, store_->Describe(), run, expected);
}

Result<VersionRecord> Catalog::LoadUnpinned(uint64_t number) {
  const auto name = format::ManifestName(number);
  auto text = store_->Get(name, format::kMaxManifestBytes);
  if (!text && text.error().code() == Code::kNotFound)
    return Fail(Code::kNotFound, "version {} does not exist: {} holds no object {}", number,
                store_->Describe(), name);
  if (!text) return Fail(text.error());
  auto manifest = format::ParseManifest(*text);
  if (!manifest) return Fail(manifest.error().Within(name));
  if (manifest->number != number)
    return Fail(Code::kCorrupt, "{} is the manifest of version {}; expected {}; {}", name, manifest->number,
                number, kRemedy);
  return VersionRecord{*std::move(manifest), Text(Sha256(*text))};
}

Result<VersionRecord> Catalog::Load(uint64_t number) {
  DELTAWIRE_ASSIGN(auto record, LoadUnpinned(number));
  DELTAWIRE_TRY(CheckRun(record.manifest.run, format::ManifestName(number)));
  return record;
}

Result<std::shared_ptr<const format::Inventory>> Catalog::LoadInventory(const std::string& hash) {
  for (const auto& [known, inventory] : inventories_)
    if (known == hash) return inventory;
  const auto name = format::InventoryName(hash);
  auto text = store_->Get(name, format::kMaxInventoryBytes);
  if (!text) return Fail(text.error().Within("the run's inventory"));
  if (const auto found = Text(Sha256(*text)); found != hash)
    return Fail(Code::kCorrupt,
                "{} has SHA-256 {}; expected {}; restore it, or publish again with the same model", name,
                found, hash);
  auto inventory = format::ParseInventory(*text);
  if (!inventory) return Fail(inventory.error().Within(name));
  auto shared = std::make_shared<const format::Inventory>(*std::move(inventory));
  inventories_.emplace_back(hash, shared);
  return shared;
}

Result<Bytes> Catalog::ReadObject(const format::ObjectRef& object, std::string_view what) {
  auto bytes = store_->Get(object.name, object.bytes);
  if (!bytes && bytes.error().code() == Code::kNotFound)
    return Fail(Code::kNotFound, "{}: object {} is missing from {}; {}", what, object.name,
                store_->Describe(), kRemedy);
  if (!bytes && bytes.error().code() == Code::kCorrupt)
    return Fail(Code::kCorrupt, "{}: {}; {}", what, bytes.error().message(), kRemedy);
  if (!bytes) return Fail(bytes.error().Within(what));
  if (bytes->size() != object.bytes)
    return Fail(Code::kCorrupt, "{}: object {} has {} bytes; expected {}; {}", what, object.name,
                bytes->size(), object.bytes, kRemedy);
  if (const auto found = Text(Sha256(*bytes)); found != object.sha256)
    return Fail(Code::kCorrupt, "{}: object {} has SHA-256 {}; expected {}; {}", what, object.name, found,
                object.sha256, kRemedy);
  return bytes;
}

Result<Bytes> Catalog::ReadPart(const format::Manifest& manifest, size_t index) {
  if (index >= manifest.parts.size())
    return Fail(Code::kInvalidArgument, "version {} has {} parts; part {} was asked for", manifest.number,
                manifest.parts.size(), index);
  return ReadObject(manifest.parts[index].object, VersionText(manifest.number));
}

Result<std::vector<Digest>> Catalog::ReadDigestTable(const std::optional<format::ObjectRef>& object,
                                                     const std::string& inventory, std::string_view what) {
  if (!object) return Fail(Code::kNotFound, "{} stores no digests of single tensors", what);
  DELTAWIRE_ASSIGN(const auto tensors, LoadInventory(inventory));
  DELTAWIRE_ASSIGN(const auto bytes, ReadObject(*object, what));
  auto digests = format::ParseDigestTable(bytes, tensors->tensors.size());
  if (!digests) return Fail(digests.error().Within(object->name));
  return digests;
}

Result<std::vector<Digest>> Catalog::ReadTensorDigests(const format::Manifest& manifest) {
  return ReadDigestTable(manifest.tensor_digests, manifest.inventory, VersionText(manifest.number));
}

Result<std::vector<Digest>> Catalog::ReadTensorDigests(const format::AnchorManifest& anchor) {
  return ReadDigestTable(anchor.tensor_digests, anchor.inventory, fmt::format("anchor {}", anchor.number));
}

Result<format::AnchorManifest> Catalog::LoadAnchor(uint64_t number) {
  const auto name = format::AnchorManifestName(number);
  auto text = store_->Get(name, format::kMaxManifestBytes);
  if (!text && text.error().code() == Code::kNotFound)
    return Fail(Code::kNotFound, "anchor {} does not exist: {} holds no object {}", number,
                store_->Describe(), name);
  if (!text) return Fail(text.error());
  auto anchor = format::ParseAnchorManifest(*text);
  if (!anchor) return Fail(anchor.error().Within(name));
  if (anchor->number != number)
    return Fail(Code::kCorrupt, "{} is the manifest of anchor {}; expected {}; {}", name, anchor->number,
                number, kRemedy);
  DELTAWIRE_TRY(CheckRun(anchor->run, name));
  return anchor;
}

Status Catalog::ReadAnchorFile(const format::AnchorManifest& anchor, size_t index,
                               const std::function<Status(ByteSpan)>& sink) {
  if (index >= anchor.files.size())
    return Fail(Code::kInvalidArgument, "anchor {} has {} files; file {} was asked for", anchor.number,
                anchor.files.size(), index);
  const auto& file = anchor.files[index];
  const auto name = fmt::format("{}/{}", format::AnchorDir(anchor.number), file.name);
  const auto info = store_->Stat(name);
  if (!info && info.error().code() == Code::kNotFound)
    return Fail(Code::kNotFound, "anchor {}: object {} is missing from {}; {}", anchor.number, name,
                store_->Describe(), kRemedy);
  if (!info) return Fail(info.error());
  if (info->size_bytes != file.bytes)
    return Fail(Code::kCorrupt, "anchor {}: object {} has {} bytes; expected {}; {}", anchor.number, name,
                info->size_bytes, file.bytes, kRemedy);
  Sha256Stream hash;
  for (uint64_t offset = 0; offset < file.bytes;) {
    const auto length = std::min(kStreamPiece, file.bytes - offset);
    DELTAWIRE_ASSIGN(const auto piece, store_->GetRange(name, offset, length));
    hash.Update(piece);
    DELTAWIRE_TRY(sink(piece));
    offset += length;
  }
  if (const auto found = Text(hash.Finish()); found != file.sha256)
    return Fail(Code::kCorrupt, "anchor {}: object {} has SHA-256 {}; expected {}; {}", anchor.number, name,
                found, file.sha256, kRemedy);
  return {};
}

Result<Path> Catalog::Plan(const PathRequest& request) {
  return PlanPath(request, {.version = [this](uint64_t number) { return Load(number); },
                            .anchors = [this] { return Anchors(); },
                            .anchor = [this](uint64_t number) { return LoadAnchor(number); }});
}

}  // namespace deltawire::sync
