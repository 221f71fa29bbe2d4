// Reading the versions of a run from a store (docs/formats/manifest.md has the layout).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "format/inventory.h"
#include "format/manifest.h"
#include "store/store.h"
#include "sync/path.h"
#include "sync/records.h"
#include "tensor/digest.h"

namespace deltawire::sync {

// One thread at a time. What is missing in the store is kNotFound, what contradicts its hash or grammar is
// kCorrupt; messages name the object, found, expected and the remedy. Nothing is cached but the run id and
// the inventories, so objects that appear or disappear are noticed.
class Catalog {
 public:
  // shared_ptr: readers, writers and uploads of one process share a store. run: refuse any other (kWrongRun);
  // otherwise the first use pins the run of the oldest version there is. No I/O.
  explicit Catalog(std::shared_ptr<Store> store, std::optional<std::string> run = std::nullopt)
      : store_(std::move(store)), run_(std::move(run)) {}

  Store& store() { return *store_; }

  // The run id; kNotFound while there is no version.
  Result<std::string> Run();

  // Numbers of the versions whose manifests exist, ascending, possibly with gaps. Empty for an empty run.
  Result<std::vector<uint64_t>> Versions();
  // The highest of them; kNotFound for an empty run. LATEST may add a version that the listing lacks, if its
  // manifest exists, and can do nothing else. Lists everything: for writers, who must not publish into a
  // hole.
  Result<uint64_t> Newest();
  // The same in a few lookups, whatever the age of the run: for receivers, who ask again and again. Starts at
  // LATEST or at `held`, whichever is higher, and goes up while manifests exist: numbers are consecutive, and
  // what prunes a run takes it from the bottom. Where there is no LATEST, or no manifest at the start, or
  // more than kMaxProbes above it, it is Newest(). Answers less than Newest() only while LATEST lags behind a
  // version that somebody took out of the middle; never less than a `held` that exists.
  Result<uint64_t> NewestFrom(std::optional<uint64_t> held);
  static constexpr int kMaxProbes = 16;
  // kWrongRun for a manifest of another run.
  Result<VersionRecord> Load(uint64_t number);

  // Verified against its hash.
  Result<std::shared_ptr<const format::Inventory>> LoadInventory(const std::string& hash);
  // The bytes of manifest.parts[index], size and SHA-256 verified.
  Result<Bytes> ReadPart(const format::Manifest& manifest, size_t index);
  // Digests of all tensors in inventory order; kNotFound when the version (anchor) stores none.
  Result<std::vector<Digest>> ReadTensorDigests(const format::Manifest& manifest);
  Result<std::vector<Digest>> ReadTensorDigests(const format::AnchorManifest& anchor);

  // Numbers of the anchors whose manifests exist, ascending.
  Result<std::vector<uint64_t>> Anchors();
  // Whether it belongs to the version of that number is checked by Plan.
  Result<format::AnchorManifest> LoadAnchor(uint64_t number);
  // Streams anchor.files[index] into sink, in order, in pieces of at most 8 MiB. What sink got is verified
  // only once this returns success. An error of sink ends the read and is returned.
  Status ReadAnchorFile(const format::AnchorManifest& anchor, size_t index,
                        const std::function<Status(ByteSpan)>& sink);

  // PlanPath over this catalog.
  Result<Path> Plan(const PathRequest& request);

 private:
  Result<std::vector<uint64_t>> ListNumbers(std::string_view prefix,
                                            std::optional<uint64_t> (*number_from)(std::string_view));
  Result<VersionRecord> LoadUnpinned(uint64_t number);
  Status CheckRun(const std::string& run, const std::string& object);
  Result<Bytes> ReadObject(const format::ObjectRef& object, std::string_view what);
  Result<std::vector<Digest>> ReadDigestTable(const std::optional<format::ObjectRef>& object,
                                              const std::string& inventory, std::string_view what);

  std::shared_ptr<Store> store_;
  std::optional<std::string> run_;
  // shared_ptr: an inventory stays valid for whoever asked for it.
  std::vector<std::pair<std::string, std::shared_ptr<const format::Inventory>>> inventories_;
};

}  // namespace deltawire::sync
