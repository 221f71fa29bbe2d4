#include "sync/path.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/bytes.h"

namespace deltawire::sync {
namespace {

using format::AnchorManifest;
using format::BaseRef;
using format::Manifest;

// Sizes come from manifests: a sum that overflows is simply too dear.
uint64_t Add(uint64_t a, uint64_t b) { return CheckedAdd(a, b).value_or(UINT64_MAX); }

uint64_t AnchorBytes(const AnchorManifest& anchor) {
  uint64_t bytes = 0;
  for (const auto& file : anchor.files) bytes = Add(bytes, file.bytes);
  return bytes;
}

std::string HeldText(const Position& position) {
  if (position.version) return fmt::format("version {}", *position.version);
  if (position.digest) return fmt::format("weights with digest {}", position.digest->Hex());
  return "nothing";
}

bool Contains(const std::vector<uint64_t>& numbers, uint64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

// A version on the way, and what its patch costs.
struct Link {
  VersionRecord record;
  std::string coding;       // of the patch; empty: no bit changes
  uint64_t bytes = 0;       // of the patch
  uint64_t tail_bytes = 0;  // of the patches after this version
  size_t tail_steps = 0;
};

// A way into the chain at chain[link].
struct Entry {
  size_t link = 0;
  std::optional<AnchorManifest> anchor;
  bool patch_first = false;  // the link's own patch is a step: the receiver holds its base, or needs none
  std::optional<uint64_t> start;
  uint64_t bytes = 0;
  size_t steps = 0;
};

class Planner {
 public:
  Planner(const PathRequest& request, const ManifestSource& source) : request_(request), source_(source) {}

  Result<Path> Run() {
    const auto& held = request_.position;
    if (held.version && request_.target < *held.version && !request_.allow_rollback)
      return Fail(
          Code::kInvalidArgument,
          "version {} is older than version {}, which is held; there is no way back without rollback: ask "
          "for it explicitly",
          request_.target, *held.version);
    DELTAWIRE_ASSIGN(auto target, source_.version(request_.target));
    DELTAWIRE_TRY(LearnDigest(target));
    const auto elements = target.manifest.counts.total;
    Walk(std::move(target));
    // What may succeed when repeated is no hole to go round at the price of an anchor.
    if (hole_ && hole_->code() == Code::kIo) return Fail(*hole_);
    if (!best_ || best_->bytes > elements) LookForAnchors();
    if (!best_) return NoWay();
    return BuildPath();
  }

 private:
  // Where only a version is known, its manifest tells the digest. Without it the position is unknown.
  Status LearnDigest(const VersionRecord& target) {
    digest_ = request_.position.digest;
    const auto version = request_.position.version;
    if (digest_ || !version) return {};
    if (*version == target.number()) {
      digest_ = target.manifest.digest;
      return {};
    }
    auto record = source_.version(*version);
    if (record) {
      digest_ = record->manifest.digest;
      return {};
    }
    if (record.error().code() == Code::kIo) return Fail(record.error());
    notes_.push_back(record.error().message());
    return {};
  }

  // From the target backwards until the receiver is met, no cheaper way in can follow, or the chain ends.
  void Walk(VersionRecord record) {
    uint64_t tail_bytes = 0;
    size_t tail_steps = 0;
    for (;;) {
      chain_.push_back({std::move(record), "", 0, tail_bytes, tail_steps});
      auto& link = chain_.back();
      const auto& manifest = link.record.manifest;
      if (digest_ && manifest.digest == *digest_) {
        Offer({.link = chain_.size() - 1,
               .anchor = {},
               .start = manifest.number,
               .bytes = tail_bytes,
               .steps = tail_steps});
        return;
      }
      const bool anchor_may_win = !digest_ || tail_bytes >= manifest.counts.total;
      if (anchor_may_win) LookForAnchors();
      if (best_ && (!digest_ || tail_bytes >= best_->bytes)) return;

      auto previous = StepBack(link);
      if (!previous) {
        hole_ = std::move(previous).error();
        return;
      }
      if (!*previous) return;  // met the receiver at the base of this version
      tail_bytes = Add(tail_bytes, link.bytes);
      if (!link.coding.empty()) ++tail_steps;
      record = **std::move(previous);
    }
  }

  // The version before, nullopt when the receiver holds its bits, or why the chain ends here.
  Result<std::optional<VersionRecord>> StepBack(Link& link) {
    const auto& manifest = link.record.manifest;
    if (manifest.alias_of) return LoadOriginal(manifest);
    DELTAWIRE_TRY(ChoosePatch(link));
    const auto& base = manifest.base;
    const Entry here{.link = chain_.size() - 1,
                     .anchor = {},
                     .patch_first = !link.coding.empty(),
                     .start = {},
                     .bytes = Add(link.tail_bytes, link.bytes),
                     .steps = link.tail_steps + (link.coding.empty() ? 0 : 1)};
    switch (base.kind) {
      case BaseRef::Kind::kNone:
        if (manifest.parts.empty())
          return Fail(Code::kNotFound, "version {} starts from nothing and has no anchor", manifest.number);
        Offer(here);
        return Fail(Code::kNotFound, "version {} starts from nothing", manifest.number);
      case BaseRef::Kind::kCheckpoint:
        if (digest_ != base.digest)
          return Fail(Code::kWrongBase, "version {} starts from the checkpoint with digest {}",
                      manifest.number, base.digest.Hex());
        Offer(here);
        return std::nullopt;
      case BaseRef::Kind::kVersion: break;
    }
    if (digest_ == base.digest) {
      auto entry = here;
      entry.start = base.number;
      Offer(entry);
      return std::nullopt;
    }
    return LoadBase(manifest);
  }

  Result<std::optional<VersionRecord>> LoadOriginal(const Manifest& manifest) {
    const auto& base = manifest.base;
    if (base.kind == BaseRef::Kind::kVersion && base.number == *manifest.alias_of) return LoadBase(manifest);
    DELTAWIRE_ASSIGN(auto record, LoadEarlier(manifest, *manifest.alias_of, "original"));
    if (record.manifest.digest != manifest.digest)
      return Fail(Code::kCorrupt, "version {} has digest {}, but is an alias of version {} with digest {}",
                  manifest.number, manifest.digest.Hex(), record.number(), record.manifest.digest.Hex());
    return std::optional(std::move(record));
  }

  Result<std::optional<VersionRecord>> LoadBase(const Manifest& manifest) {
    const auto& base = manifest.base;
    DELTAWIRE_ASSIGN(auto record, LoadEarlier(manifest, base.number, "base"));
    if (record.sha256 != base.manifest)
      return Fail(
          Code::kCorrupt,
          "version {} builds on a version {} whose manifest has SHA-256 {}; the one in the store has {}",
          manifest.number, base.number, base.manifest, record.sha256);
    if (record.manifest.digest != base.digest || (manifest.alias_of && manifest.digest != base.digest))
      return Fail(Code::kCorrupt, "version {} builds on digest {}, but its base, version {}, has digest {}",
                  manifest.number, base.digest.Hex(), base.number, record.manifest.digest.Hex());
    return std::optional(std::move(record));
  }

  Result<VersionRecord> LoadEarlier(const Manifest& manifest, uint64_t number, std::string_view what) {
    if (number >= manifest.number)
      return Fail(Code::kCorrupt, "version {} names version {} as its {}; expected an earlier one",
                  manifest.number, number, what);
    auto record = source_.version(number);
    if (!record && record.error().code() == Code::kNotFound)
      return Fail(Code::kNotFound, "version {}, the {} of version {}, is missing", number, what,
                  manifest.number);
    if (!record) return Fail(record.error());
    if (record->manifest.inventory != manifest.inventory)
      return Fail(Code::kMismatch, "version {} has inventory {}, its {}, version {}, has {}", manifest.number,
                  manifest.inventory, what, number, record->manifest.inventory);
    return record;
  }

  // The cheapest readable coding: all parts of one coding together are one complete form of the patch.
  Status ChoosePatch(Link& link) const {
    const auto& manifest = link.record.manifest;
    if (manifest.parts.empty()) {
      if (manifest.base.kind == BaseRef::Kind::kNone || manifest.digest == manifest.base.digest) return {};
      return Fail(Code::kNotFound, "version {} changes bits, but has no parts and no anchor",
                  manifest.number);
    }
    if (Contains(request_.broken_patches, manifest.number))
      return Fail(Code::kNotFound, "objects of version {} are missing or damaged", manifest.number);
    std::map<std::string, uint64_t> bytes_by_coding;
    for (const auto& part : manifest.parts) {
      auto& bytes = bytes_by_coding[part.coding];
      bytes = Add(bytes, part.object.bytes);
    }
    std::string all;
    for (const auto& [coding, bytes] : bytes_by_coding) {
      all += (all.empty() ? "" : ", ") + coding;
      const bool readable =
          request_.codings.empty() ||
          std::find(request_.codings.begin(), request_.codings.end(), coding) != request_.codings.end();
      if (!readable || (!link.coding.empty() && bytes >= link.bytes)) continue;
      link.coding = coding;
      link.bytes = bytes;
    }
    if (!link.coding.empty()) return {};
    return Fail(Code::kUnsupported,
                "version {} has the codings {}, none of which this receiver decodes; upgrade deltawire here, "
                "or publish in a coding that it was opened with, or with an anchor",
                manifest.number, all);
  }

  // Offers the anchors of all links that were not looked at yet.
  void LookForAnchors() {
    if (!anchors_) {
      auto numbers = source_.anchors();
      if (!numbers) notes_.push_back(numbers.error().message());
      anchors_ = numbers ? *std::move(numbers) : std::vector<uint64_t>();
    }
    for (; anchors_seen_ < chain_.size(); ++anchors_seen_) {
      const auto& link = chain_[anchors_seen_];
      if (!std::binary_search(anchors_->begin(), anchors_->end(), link.record.number())) continue;
      if (Contains(request_.broken_anchors, link.record.number())) {
        notes_.push_back(fmt::format("files of anchor {} are missing or damaged", link.record.number()));
        continue;
      }
      auto anchor = LoadAnchor(link.record);
      if (!anchor) {
        notes_.push_back(anchor.error().message());
        continue;
      }
      const auto bytes = Add(link.tail_bytes, AnchorBytes(*anchor));
      Offer({.link = anchors_seen_,
             .anchor = *std::move(anchor),
             .start = {},
             .bytes = bytes,
             .steps = link.tail_steps + 1});
    }
  }

  Result<AnchorManifest> LoadAnchor(const VersionRecord& record) const {
    DELTAWIRE_ASSIGN(auto anchor, source_.anchor(record.number()));
    if (anchor.manifest != record.sha256)
      return Fail(Code::kCorrupt,
                  "anchor {} belongs to a manifest with SHA-256 {}; that of version {} has {}",
                  record.number(), anchor.manifest, record.number(), record.sha256);
    if (anchor.digest != record.manifest.digest || anchor.inventory != record.manifest.inventory)
      return Fail(Code::kCorrupt, "anchor {} has digest {} and inventory {}; its version has {} and {}",
                  record.number(), anchor.digest.Hex(), anchor.inventory, record.manifest.digest.Hex(),
                  record.manifest.inventory);
    return anchor;
  }

  void Offer(Entry entry) {
    if (best_ && std::pair(best_->bytes, best_->steps) <= std::pair(entry.bytes, entry.steps)) return;
    best_ = std::move(entry);
  }

  Path BuildPath() {
    Path path;
    path.target = chain_.front().record;
    path.start = best_->start;
    path.bytes = best_->bytes;
    if (best_->anchor)
      path.steps.push_back({Step::Kind::kAnchor, chain_[best_->link].record, std::move(best_->anchor), ""});
    for (size_t i = best_->link + (best_->patch_first ? 1 : 0); i-- > 0;)
      if (!chain_[i].coding.empty())
        path.steps.push_back({Step::Kind::kPatch, chain_[i].record, std::nullopt, chain_[i].coding});
    return path;
  }

  tl::unexpected<Error> NoWay() const {
    std::string notes;
    for (const auto& note : notes_) notes += fmt::format(" ({})", note);
    return Fail(
        hole_->code(),
        "nothing leads from {} to version {}: {}, and there is no usable anchor between{}; write an anchor, "
        "or start from a checkpoint or version that the run builds on",
        HeldText(request_.position), request_.target, hole_->message(), notes);
  }

  const PathRequest& request_;
  const ManifestSource& source_;
  std::optional<Digest> digest_;  // of what the receiver holds
  std::vector<Link> chain_;       // from the target backwards
  std::optional<Entry> best_;
  std::optional<Error> hole_;  // why the chain ended
  std::optional<std::vector<uint64_t>> anchors_;
  size_t anchors_seen_ = 0;
  std::vector<std::string> notes_;  // what was passed over on the way
};

}  // namespace

Result<Path> PlanPath(const PathRequest& request, const ManifestSource& source) {
  return Planner(request, source).Run();
}

}  // namespace deltawire::sync
