#include "pubsub/verify_run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "base/hash.h"
#include "delta/decode.h"
#include "format/object_names.h"
#include "format/text.h"
#include "pubsub/anchor_io.h"
#include "pubsub/coding_name.h"
#include "pubsub/part_header.h"

namespace deltawire::pubsub {
namespace {

class Checker {
 public:
  Checker(sync::Catalog& catalog, const VerifyRunOptions& options) : catalog_(catalog), options_(options) {}

  Result<RunCheck> Check() {
    DELTAWIRE_ASSIGN(check_.run, catalog_.Run());
    DELTAWIRE_ASSIGN(const auto versions, catalog_.Versions());
    DELTAWIRE_ASSIGN(const auto anchors, catalog_.Anchors());
    anchors_ = {anchors.begin(), anchors.end()};
    if (!versions.empty()) oldest_ = versions.front();
    const uint64_t total = versions.size() + anchors.size();
    uint64_t done = 0;
    const auto step = [&] {
      if (options_.progress) options_.progress(++done, total);
    };
    for (const uint64_t number : versions) {
      DELTAWIRE_TRY(CheckVersion(number));
      step();
    }
    for (const uint64_t number : anchors) {
      DELTAWIRE_TRY(CheckAnchor(number));
      step();
    }
    return std::move(check_);
  }

 private:
  struct Model {
    std::shared_ptr<const format::Inventory> inventory;
    std::unique_ptr<delta::GridIndex> grid;
  };

  // Keeps a fault of `object` and returns success, so that the check goes on; passes on what stops it.
  Status Note(const std::string& object, const Status& status) {
    if (status) return {};
    if (status.error().code() == Code::kIo) return status;
    check_.faults.push_back({object, status.error()});
    return {};
  }

  Status CheckVersion(uint64_t number) {
    const std::string name = format::ManifestName(number);
    const auto record = catalog_.Load(number);
    if (!record) return Note(name, record.map([](const auto&) {}));
    ++check_.versions;
    records_[number] = *record;
    const format::Manifest& manifest = record->manifest;
    DELTAWIRE_TRY(Note(name, CheckLinks(manifest)));
    const auto model = ModelOf(manifest.inventory);
    if (!model) return Note(format::InventoryName(manifest.inventory), model.map([](const auto*) {}));
    for (size_t i = 0; i < manifest.parts.size(); ++i) {
      DELTAWIRE_TRY(Note(manifest.parts[i].object.name, CheckPart(manifest, i, **model)));
    }
    if (!manifest.tensor_digests) return {};
    return Note(manifest.tensor_digests->name,
                CheckSum(catalog_.ReadTensorDigests(manifest), manifest.digest));
  }

  Status CheckLinks(const format::Manifest& manifest) {
    if (manifest.base.kind == format::BaseRef::Kind::kVersion) {
      const auto base = records_.find(manifest.base.number);
      if (base == records_.end()) {
        // Retention removes the oldest versions; the first of the rest then needs its own way in.
        if (manifest.number != oldest_ || !anchors_.contains(manifest.number)) {
          return Fail(Code::kNotFound,
                      "version {} builds on version {}, which is missing or damaged; restore it (only the "
                      "oldest version "
                      "may stand without its base, if it has an anchor)",
                      manifest.number, manifest.base.number);
        }
      } else if (base->second.sha256 != manifest.base.manifest ||
                 base->second.manifest.digest != manifest.base.digest) {
        return Fail(Code::kCorrupt,
                    "version {} builds on a version {} with manifest {} and digest {}; the one here has "
                    "manifest {} and "
                    "digest {}: a manifest was replaced; restore it",
                    manifest.number, manifest.base.number, manifest.base.manifest, manifest.base.digest.Hex(),
                    base->second.sha256, base->second.manifest.digest.Hex());
      } else {
        ++check_.links;
      }
    }
    if (!manifest.alias_of) return {};
    const auto original = records_.find(*manifest.alias_of);
    if (original == records_.end()) return {};  // pruned; the alias is known by its digest
    if (original->second.manifest.digest != manifest.digest) {
      return Fail(Code::kCorrupt, "version {} claims the bits of version {}, but their digests are {} and {}",
                  manifest.number, *manifest.alias_of, manifest.digest.Hex(),
                  original->second.manifest.digest.Hex());
    }
    ++check_.links;
    return {};
  }

  Status CheckPart(const format::Manifest& manifest, size_t index, const Model& model) {
    const format::ManifestPart& part = manifest.parts[index];
    DELTAWIRE_ASSIGN(const Bytes file, catalog_.ReadPart(manifest, index));
    check_.bytes += file.size();
    if (!CodingFromName(part.coding)) return PassOver(manifest, part);
    const ByteSpan table = ByteSpan(file).subspan(part.table.offset, part.table.bytes);
    if (const std::string found = ToHex(Sha256(table)); found != part.table.sha256) {
      return Fail(Code::kCorrupt, "the block table at {}+{} has SHA-256 {}, the manifest says {}",
                  part.table.offset, part.table.bytes, found, part.table.sha256);
    }
    DELTAWIRE_ASSIGN(const auto update,
                     delta::DecodeUpdate(file, *model.inventory, *model.grid, options_.parallel));
    DELTAWIRE_TRY(CheckPartHeader(update.header, manifest));
    ++check_.parts;
    return {};
  }

  // A later release may publish in a coding of its own beside those of today, as receivers pass over it, too.
  // Where it is the only one, nobody here can read the version.
  Status PassOver(const format::Manifest& manifest, const format::ManifestPart& part) {
    const bool readable = std::any_of(manifest.parts.begin(), manifest.parts.end(),
                                      [](const auto& other) { return bool{CodingFromName(other.coding)}; });
    if (!readable) {
      return Fail(Code::kUnsupported,
                  "coding {} is unknown to this build and version {} has no other; upgrade deltawire here",
                  format::Quoted(part.coding), manifest.number);
    }
    ++check_.unread_parts;
    return {};
  }

  Status CheckSum(const Result<std::vector<Digest>>& digests, const Digest& state) {
    if (!digests) return digests.map([](const auto&) {});
    const Digest sum = std::accumulate(digests->begin(), digests->end(), Digest{});
    if (sum != state) {
      return Fail(Code::kCorrupt, "the tensors' digests add up to {}, the manifest says {}", sum.Hex(),
                  state.Hex());
    }
    ++check_.digest_tables;
    return {};
  }

  Status CheckAnchor(uint64_t number) {
    const std::string name = format::AnchorManifestName(number);
    const auto anchor = catalog_.LoadAnchor(number);
    if (!anchor) return Note(name, anchor.map([](const auto&) {}));
    const auto record = records_.find(number);
    if (record == records_.end()) {
      return Note(name, Fail(Code::kNotFound,
                             "the anchor's version {} is missing or damaged; restore its manifest", number));
    }
    if (record->second.sha256 != anchor->manifest || record->second.manifest.digest != anchor->digest) {
      return Note(name,
                  Fail(Code::kCorrupt,
                       "the anchor is of a version with manifest {} and digest {}; version {} has {} and {}; "
                       "remove the anchor",
                       anchor->manifest, anchor->digest.Hex(), number, record->second.sha256,
                       record->second.manifest.digest.Hex()));
    }
    ++check_.anchors;
    for (size_t i = 0; i < anchor->files.size(); ++i) {
      const Status read = catalog_.ReadAnchorFile(*anchor, i, [&](ByteSpan piece) -> Status {
        check_.bytes += piece.size();
        return {};
      });
      if (read) ++check_.anchor_files;
      DELTAWIRE_TRY(Note(format::AnchorDir(number) + "/" + anchor->files[i].name, read));
    }
    if (anchor->tensor_digests) {
      DELTAWIRE_TRY(
          Note(anchor->tensor_digests->name, CheckSum(catalog_.ReadTensorDigests(*anchor), anchor->digest)));
    }
    const auto model = ModelOf(anchor->inventory);
    if (!model) return Note(format::InventoryName(anchor->inventory), model.map([](const auto*) {}));
    return Note(name,
                AnchorReader::Open(catalog_.store(), *anchor, *(*model)->inventory).map([](const auto&) {}));
  }

  Result<const Model*> ModelOf(const std::string& hash) {
    auto& model = models_[hash];
    if (!model.inventory) {
      DELTAWIRE_ASSIGN(model.inventory, catalog_.LoadInventory(hash));
      model.grid = std::make_unique<delta::GridIndex>(*model.inventory);
      ++check_.inventories;
    }
    return &model;
  }

  sync::Catalog& catalog_;
  const VerifyRunOptions& options_;
  RunCheck check_;
  std::set<uint64_t> anchors_;
  uint64_t oldest_ = 0;
  std::map<uint64_t, sync::VersionRecord> records_;  // those that could be read
  std::map<std::string, Model> models_;              // by inventory hash
};

}  // namespace

Result<RunCheck> VerifyRun(sync::Catalog& catalog, const VerifyRunOptions& options) {
  return Checker(catalog, options).Check();
}

}  // namespace deltawire::pubsub
