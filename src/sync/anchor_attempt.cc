#include <algorithm>
#include <utility>

#include "base/object_name.h"
#include "format/digests.h"
#include "sync/catalog.h"
#include "sync/catalog_writer.h"

namespace deltawire::sync {
namespace {

constexpr std::string_view kManifestFile = "manifest.json";
constexpr std::string_view kDigestsFile = "digests.bin";

}  // namespace

// Counts and hashes what passes, and enters the file into the manifest when it is durable.
class AnchorFile final : public ObjectWriter {
 public:
  AnchorFile(AnchorAttempt& attempt, std::string file, std::unique_ptr<ObjectWriter> object)
      : attempt_(&attempt), file_(std::move(file)), object_(std::move(object)) {}

  Status Append(ByteSpan bytes) override {
    hash_.Update(bytes);
    bytes_ += bytes.size();
    return object_->Append(bytes);
  }

  Status Commit(Condition) override {
    DELTAWIRE_TRY(object_->Commit(Condition::kOverwrite));
    attempt_->manifest_.files.push_back({file_, bytes_, ToHex(hash_.Finish())});
    return {};
  }

 private:
  AnchorAttempt* attempt_;
  std::string file_;
  std::unique_ptr<ObjectWriter> object_;
  Sha256Stream hash_;
  uint64_t bytes_ = 0;
};

AnchorAttempt::~AnchorAttempt() {
  writer_->open_anchor_.reset();
  if (!keep_) writer_->DeleteAll(names_);
}

std::string AnchorAttempt::ObjectName(std::string_view file) const {
  return fmt::format("{}/{}", format::AnchorDir(manifest_.number), file);
}

Result<std::unique_ptr<ObjectWriter>> AnchorAttempt::CreateFile(std::string_view name) {
  DELTAWIRE_TRY(writer_->CheckNotFenced());
  const bool listed = std::any_of(manifest_.files.begin(), manifest_.files.end(),
                                  [&](const auto& file) { return file.name == name; });
  if (!IsSafeObjectName(name) || name.find('/') != std::string_view::npos || name == kManifestFile ||
      name == kDigestsFile || listed)
    return Fail(
        Code::kInvalidArgument,
        "anchor {} can't hold a file \"{}\"; expected a plain file name that is not written yet and neither "
        "{} nor {}",
        manifest_.number, name, kManifestFile, kDigestsFile);
  // Before the first try, because a failed one may leave an object as well.
  names_.push_back(ObjectName(name));
  DELTAWIRE_ASSIGN(auto object, writer_->store_->Create(names_.back()));
  return std::make_unique<AnchorFile>(*this, std::string(name), std::move(object));
}

Status AnchorAttempt::PutFile(std::string_view name, ByteSpan bytes) {
  DELTAWIRE_ASSIGN(const auto file, CreateFile(name));
  DELTAWIRE_TRY(file->Append(bytes));
  return file->Commit(Condition::kOverwrite);
}

Status AnchorAttempt::PutTensorDigests(std::span<const Digest> digests) {
  DELTAWIRE_TRY(writer_->CheckNotFenced());
  const auto table = format::DigestTableBytes(digests);
  const auto name = ObjectName(kDigestsFile);
  names_.push_back(name);
  DELTAWIRE_TRY(writer_->store_->Put(name, table, Condition::kOverwrite));
  manifest_.tensor_digests = format::ObjectRef{name, table.size(), ToHex(Sha256(table))};
  return {};
}

Status AnchorAttempt::Commit() {
  DELTAWIRE_TRY(writer_->CheckNotFenced());
  DELTAWIRE_TRY(format::CheckAnchorManifest(manifest_));
  const auto name = format::AnchorManifestName(manifest_.number);
  const auto text = format::AnchorManifestText(manifest_);
  const auto put = writer_->PutIfAbsent(name, AsBytes(text));
  if (put) {
    keep_ = true;
    return {};
  }
  const auto there = writer_->store_->Get(name, format::kMaxManifestBytes);
  keep_ = true;
  if (there && AsText(*there) == text) return {};
  if (there)
    return Fail(Code::kExists,
                "anchor {} was written by another publisher at the same time; its files may be mixed: "
                "delete {} and write it again",
                manifest_.number, name);
  if (put.error().code() != Code::kIo && there.error().code() == Code::kNotFound) {
    keep_ = false;
    return Fail(put.error().Within(fmt::format("anchor {} was not written", manifest_.number)));
  }
  return Fail(Code::kIo, "anchor {} may or may not be written: {}; reading it back: {}; begin it again",
              manifest_.number, put.error().message(), there.error().message());
}

Result<std::unique_ptr<AnchorAttempt>> CatalogWriter::BeginAnchor(const VersionRecord& version) {
  DELTAWIRE_TRY(CheckNotFenced());
  if (open_anchor_) return Fail(Code::kInvalidArgument, "anchor {} is still open", *open_anchor_);
  const auto number = version.number();
  if (version.manifest.run != options_.run)
    return Fail(Code::kWrongRun, "version {} belongs to run \"{}\"; this writer's is \"{}\"", number,
                version.manifest.run, options_.run);
  Catalog catalog(store_, options_.run);
  const auto there = catalog.LoadAnchor(number);
  if (there && there->manifest == version.sha256)
    return Fail(Code::kExists, "version {} has an anchor already", number);
  if (there) {
    const auto committed = catalog.Load(number);
    if (committed && committed->sha256 != version.sha256)
      return Fail(Code::kInvalidArgument,
                  "version {} in the store has a manifest with SHA-256 {}; {} was given", number,
                  committed->sha256, version.sha256);
    if (!committed && committed.error().code() != Code::kNotFound) return Fail(committed.error());
  } else if (there.error().code() != Code::kNotFound && there.error().code() != Code::kCorrupt) {
    return Fail(there.error());
  }
  // What an attempt that never became this version's anchor left. Its manifest goes first.
  DELTAWIRE_TRY(store_->Delete(format::AnchorManifestName(number)));
  DELTAWIRE_ASSIGN(const auto leftovers, store_->List(format::AnchorDir(number) + "/"));
  for (const auto& info : leftovers) DELTAWIRE_TRY(store_->Delete(info.name));

  format::AnchorManifest manifest;
  manifest.run = options_.run;
  manifest.number = number;
  manifest.inventory = version.manifest.inventory;
  manifest.digest = version.manifest.digest;
  manifest.manifest = version.sha256;
  open_anchor_ = number;
  return std::unique_ptr<AnchorAttempt>(new AnchorAttempt(*this, std::move(manifest)));
}

}  // namespace deltawire::sync
