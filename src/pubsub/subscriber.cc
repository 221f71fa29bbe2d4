#include "pubsub/subscriber.h"

#include <algorithm>
#include <map>
#include <set>

#include "pubsub/anchor_io.h"
#include "pubsub/coding_name.h"
#include "pubsub/part_header.h"

namespace deltawire::pubsub {
namespace {

// Failures of one path that another path can go round.
bool AnotherPathMayHelp(Code code) {
  return code == Code::kDetectorFault || code == Code::kWrongBase || code == Code::kCorrupt ||
         code == Code::kNotFound;
}

bool SameElements(const TensorView& a, const TensorView& b) {
  return a.memory->handle() == b.memory->handle() && a.offset_bytes == b.offset_bytes &&
         a.strides == b.strides;
}

// Different tensors of the run must not share memory in the receiver: writing one would change the other.
// Exact for row-major views; a strided view counts only where another starts at its very first byte.
Status CheckApart(const format::Inventory& inventory, const std::vector<delta::ReplicaTensor>& tensors) {
  struct Span {
    void* memory;
    uint64_t begin;
    uint64_t end;
    uint32_t tensor;
  };
  std::vector<Span> spans;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    for (const TensorView& view : tensors[i].views) {
      const uint64_t count = ElementCount(view.shape).value_or(0);
      if (count == 0) continue;
      const uint64_t bytes = view.IsRowMajor() ? count * DtypeBytes(view.dtype) : 1;
      spans.push_back({view.memory->handle(), view.offset_bytes, view.offset_bytes + bytes, i});
    }
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::pair(a.memory, a.begin) < std::pair(b.memory, b.begin);
  });
  for (size_t i = 1; i < spans.size(); ++i) {
    const Span& before = spans[i - 1];
    if (before.memory != spans[i].memory || before.end <= spans[i].begin || before.tensor == spans[i].tensor)
      continue;
    return Fail(Code::kMismatch,
                "the receiver keeps {} and {} in the same memory, but the run serves them as different "
                "tensors; give each "
                "its own storage (untie them)",
                inventory.tensors[before.tensor].name, inventory.tensors[spans[i].tensor].name);
  }
  return {};
}

}  // namespace

Subscriber::Subscriber(SubscriberOptions options, std::vector<TargetTensor> targets)
    : options_(std::move(options)), targets_(std::move(targets)), catalog_(options_.store, options_.run) {}

Result<std::unique_ptr<Subscriber>> Subscriber::Open(SubscriberOptions options,
                                                     std::vector<TargetTensor> targets) {
  if (options.codings.empty())
    return Fail(Code::kInvalidArgument, "no coding may be used; name at least one");
  for (const std::string& name : options.codings) DELTAWIRE_TRY(CodingFromName(name));
  std::set<std::string_view> names;
  for (const TargetTensor& target : targets) {
    if (!names.insert(target.name).second) {
      return Fail(Code::kInvalidArgument, "the receiver names tensor {} twice", target.name);
    }
    DELTAWIRE_TRY(CheckInside(target.view, target.name));
  }
  return std::unique_ptr<Subscriber>(new Subscriber(std::move(options), std::move(targets)));
}

Result<Digest> Subscriber::digest() const {
  if (!replica_) return Fail(Code::kNotFound, "nothing has been proved yet: the run has not been seen");
  return replica_->digest();
}

Status Subscriber::Attach() {
  DELTAWIRE_ASSIGN(const uint64_t newest, catalog_.NewestFrom(std::nullopt));
  DELTAWIRE_ASSIGN(const auto record, catalog_.Load(newest));
  DELTAWIRE_ASSIGN(auto inventory, catalog_.LoadInventory(record.manifest.inventory));

  std::map<std::string_view, uint32_t> index;
  for (uint32_t i = 0; i < inventory->tensors.size(); ++i) {
    index[inventory->tensors[i].name] = i;
    for (const auto& alias : inventory->tensors[i].aliases) index[alias] = i;
  }
  std::vector<delta::ReplicaTensor> tensors(inventory->tensors.size());
  std::vector<format::TensorSpec> specs;
  std::vector<std::string> unmanaged;
  for (const TargetTensor& target : targets_) {
    const auto known = index.find(target.name);
    if (known == index.end()) {
      unmanaged.push_back(target.name);
      continue;
    }
    specs.push_back({target.name, target.view.dtype, target.view.shape});
    auto& views = tensors[known->second].views;
    const bool seen = std::any_of(views.begin(), views.end(),
                                  [&](const TensorView& view) { return SameElements(view, target.view); });
    if (!seen) views.push_back(target.view);
  }
  DELTAWIRE_TRY(format::CompareTensors(*inventory, specs, "the receiver", format::ExtraTensors::kAllow));
  DELTAWIRE_TRY(CheckApart(*inventory, tensors));
  auto grid = std::make_unique<delta::GridIndex>(*inventory);
  DELTAWIRE_ASSIGN(auto replica, delta::Replica::Attach(options_.backends, *inventory, *grid,
                                                        std::move(tensors), options_.parallel));
  std::sort(unmanaged.begin(), unmanaged.end());
  run_ = record.manifest.run;
  inventory_ = std::move(inventory);
  inventory_hash_ = record.manifest.inventory;
  grid_ = std::move(grid);
  replica_.emplace(std::move(replica));
  unmanaged_ = std::move(unmanaged);
  if (!unmanaged_.empty()) {
    options_.log->Log(LogLevel::kInfo,
                      fmt::format("{} tensors of the receiver are not part of run {} (first: {})",
                                  unmanaged_.size(), run_, unmanaged_.front()));
  }
  return {};
}

Result<Version> Subscriber::Stage(std::optional<uint64_t> number) {
  if (unusable_) {
    return Fail(Code::kUnusable, "a write to the live tensors failed half-way; load the engine again");
  }
  if (pinned_ && !number) {
    return Fail(Code::kInvalidArgument,
                "pinned at version {} by a rollback; give a version to move to, or unpin",
                version_ ? std::to_string(version_->number) : "none");
  }
  const Stopwatch watch(*options_.clock);
  if (!replica_) DELTAWIRE_TRY(Attach());
  replica_->DiscardStaged();
  staged_.reset();
  uint64_t target = 0;
  if (number) {
    target = *number;
  } else {
    const auto held = version_ ? std::optional(version_->number) : std::nullopt;
    DELTAWIRE_ASSIGN(target, catalog_.NewestFrom(held));
  }
  std::string replaced;
  if (version_ && !in_doubt_ && version_->number == target) {
    // The same number is not yet the same version: a store may have been restored, emptied or taken over.
    DELTAWIRE_ASSIGN(const auto record, catalog_.Load(target));
    if (record.manifest.digest == version_->digest) {
      staged_ = version_;
      return *staged_;
    }
    replaced = fmt::format("version {} in the store has state {}, the version {} committed here had {}",
                           target, record.manifest.digest.Hex(), target, version_->digest.Hex());
    options_.log->Log(LogLevel::kWarning, replaced);
  }

  sync::PathRequest request{
      .position = {version_ ? std::optional<uint64_t>(version_->number) : std::nullopt, replica_->digest()},
      .target = target,
      .codings = options_.codings};
  if (in_doubt_) request.position = {};  // only a full state is safe on bits that are not known
  std::optional<Error> first;
  Result<Version> staged;
  for (;;) {
    std::optional<sync::Step> failed;
    staged = StageAlong(request, failed);
    if (staged) break;
    replica_->DiscardStaged();
    const Error& error = staged.error();
    const bool base_in_doubt = error.code() == Code::kDetectorFault || error.code() == Code::kWrongBase;
    if (!first && error.code() == Code::kDetectorFault) ++refusals_;
    if (!first) first = error;
    if (!AnotherPathMayHelp(error.code()) || (!failed && !request.position.digest)) return Fail(*first);
    options_.log->Log(LogLevel::kWarning, fmt::format("version {} not staged, looking for another way: {}",
                                                      target, error.message()));
    // A base that may not be what it was is doubted before the store: from nothing, everything is proved.
    if ((base_in_doubt || !failed) && request.position.digest) {
      request.position = {};
    } else {
      auto& broken =
          failed->kind == sync::Step::Kind::kAnchor ? request.broken_anchors : request.broken_patches;
      broken.push_back(failed->record.number());
    }
  }
  if (!replaced.empty()) staged->notes.push_back(replaced);
  if (first) staged->notes.push_back(first->message());
  staged->seconds = watch.Seconds();
  staged_ = *staged;
  return staged;
}

Result<Version> Subscriber::StageAlong(const sync::PathRequest& request, std::optional<sync::Step>& failed) {
  Stopwatch stage(*options_.clock);
  DELTAWIRE_ASSIGN(const sync::Path path, catalog_.Plan(request));
  if (path.target.manifest.inventory != inventory_hash_) {
    return Fail(Code::kMismatch,
                "version {} has inventory {}, this receiver is attached to {}; open it again",
                path.target.number(), path.target.manifest.inventory, inventory_hash_);
  }
  if (!version_ && path.start) {
    DELTAWIRE_ASSIGN(const auto record, catalog_.Load(*path.start));
    version_ = VersionFromManifest(record.manifest);
  }
  const double plan_seconds = stage.Seconds();
  stage = Stopwatch(*options_.clock);
  Version version = VersionFromManifest(path.target.manifest);
  for (const sync::Step& step : path.steps) {
    const auto bytes = step.kind == sync::Step::Kind::kAnchor ? StageAnchor(step) : StagePatch(step);
    if (!bytes) {
      failed = step;
      return Fail(bytes.error());
    }
    version.bytes += *bytes;
  }
  if (replica_->staged_digest() != path.target.manifest.digest) {
    return Fail(Code::kWrongBase, "the path to version {} leads to state {}, its manifest says {}",
                request.target, replica_->staged_digest().Hex(), path.target.manifest.digest.Hex());
  }
  version.sent = replica_->staged_elements();
  version.stages = {{"plan", plan_seconds}, {"stage", stage.Seconds()}};
  return version;
}

Result<uint64_t> Subscriber::StagePatch(const sync::Step& step) {
  const format::Manifest& manifest = step.record.manifest;
  uint64_t bytes = 0;
  for (size_t i = 0; i < manifest.parts.size(); ++i) {
    if (manifest.parts[i].coding != step.coding) continue;
    const auto& name = manifest.parts[i].object.name;
    DELTAWIRE_ASSIGN(const Bytes file, catalog_.ReadPart(manifest, i));
    auto decoded = delta::DecodeUpdate(file, *inventory_, *grid_, options_.parallel);
    if (!decoded) return Fail(decoded.error().Within(name));
    if (auto status = CheckPartHeader(decoded->header, manifest); !status)
      return Fail(status.error().Within(name));
    if (auto status = replica_->Stage(*decoded); !status) return Fail(status.error().Within(name));
    bytes += file.size();
  }
  return bytes;
}

Result<uint64_t> Subscriber::StageAnchor(const sync::Step& step) {
  DELTAWIRE_ASSIGN(const auto digests, catalog_.ReadTensorDigests(*step.anchor));
  DELTAWIRE_ASSIGN(const auto reader, AnchorReader::Open(catalog_.store(), *step.anchor, *inventory_));
  const auto read = [&](uint32_t tensor, uint32_t block, MutableByteSpan bits) {
    return reader.ReadBox(tensor, grid_->boxes(tensor)[block], bits);
  };
  if (auto status = replica_->StageFull(read, digests); !status) {
    return Fail(status.error().Within(fmt::format("anchor {}", step.anchor->number)));
  }
  uint64_t bytes = 0;
  for (const auto& file : step.anchor->files) {
    if (file.name.ends_with(".safetensors")) bytes += file.bytes;
  }
  return bytes;
}

Status Subscriber::WriteObserved(const Version& version, bool undo) {
  // A copy: Commit moves the staged map to the undo log.
  const auto write = [&](const delta::Replica::StagedMap& changes) {
    return CommitObserver::Write{changes, undo, *inventory_, *grid_, run_, version};
  };
  if (options_.observer != nullptr) {
    DELTAWIRE_TRY(options_.observer->BeforeWrite(write(undo ? replica_->undo_log() : replica_->staged())));
  }
  Status status = undo ? replica_->Undo() : replica_->Commit();
  if (status && options_.observer != nullptr)
    status = options_.observer->AfterWrite(write(replica_->undo_log()));
  if (!status) {
    unusable_ = true;
    version_.reset();
    return Fail(Code::kUnusable, "{}", status.error().message());
  }
  return {};
}

Result<Version> Subscriber::Commit() {
  if (!staged_) return Fail(Code::kInvalidArgument, "nothing is staged; call stage() first");
  Version version = *std::exchange(staged_, std::nullopt);
  if (version_ && !in_doubt_ && version_->number == version.number && version_->digest == version.digest)
    return version;
  const Stopwatch watch(*options_.clock);
  if (auto status = WriteObserved(version, false); !status) {
    if (!unusable_) staged_ = std::move(version);  // cancelled before the first write
    return Fail(status.error());
  }
  in_doubt_ = false;
  version.stages.emplace_back("commit", watch.Seconds());
  previous_ = std::exchange(version_, version);
  pinned_ = false;
  return version;
}

Result<Version> Subscriber::Update(std::optional<uint64_t> number) {
  const Stopwatch watch(*options_.clock);
  DELTAWIRE_TRY(Stage(number));
  DELTAWIRE_ASSIGN(Version version, Commit());
  version.seconds = watch.Seconds();
  version_->seconds = version.seconds;
  return version;
}

Result<Version> Subscriber::Rollback() {
  if (unusable_)
    return Fail(Code::kUnusable, "a write to the live tensors failed half-way; load the engine again");
  if (!previous_ || !replica_ || !replica_->can_undo()) {
    return Fail(
        Code::kInvalidArgument,
        "there is no version to go back to: only the last commit can be undone, once, and only to a version");
  }
  const Version version = *previous_;
  DELTAWIRE_TRY(WriteObserved(version, true));
  version_ = version;
  previous_.reset();
  staged_.reset();
  pinned_ = true;
  return version;
}

Status Subscriber::Verify() {
  if (!replica_) DELTAWIRE_TRY(Attach());
  Status verified = replica_->Verify();
  if (!verified && verified.error().code() == Code::kUnusable) in_doubt_ = true;
  return verified;
}

Result<std::optional<uint64_t>> Subscriber::NewerVersion(std::optional<uint64_t> than,
                                                         const sync::WaitOptions& wait,
                                                         const std::stop_token& cancel) const {
  sync::Catalog catalog(options_.store, options_.run);
  return sync::WaitForNewer(catalog, than, wait, *options_.clock, cancel);
}

}  // namespace deltawire::pubsub
