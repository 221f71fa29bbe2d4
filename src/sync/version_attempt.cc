#include <algorithm>
#include <utility>

#include "format/digests.h"
#include "sync/catalog_writer.h"

namespace deltawire::sync {

VersionAttempt::~VersionAttempt() {
  writer_->open_attempt_.reset();
  // Parts of a version that may exist must stay: the number is decided by Settle.
  if (state_ == State::kUnclear)
    writer_->pending_ = CatalogWriter::Pending{*std::move(sealed_), std::move(text_)};
  if (state_ == State::kOpen) writer_->DeleteAll(names_);
}

Result<format::ObjectRef> VersionAttempt::PutObject(std::string name, std::span<const ByteSpan> pieces) {
  DELTAWIRE_TRY(writer_->CheckNotFenced());
  if (sealed_) return Fail(Code::kInvalidArgument, "version {} is sealed; {} can't be added", number_, name);
  // Before the first try, because a failed one may leave an object as well.
  names_.push_back(name);
  DELTAWIRE_ASSIGN(const auto object, writer_->store_->Create(name));
  Sha256Stream hash;
  uint64_t bytes = 0;
  for (const auto piece : pieces) {
    hash.Update(piece);
    bytes += piece.size();
    DELTAWIRE_TRY(object->Append(piece));
  }
  DELTAWIRE_TRY(object->Commit(Condition::kOverwrite));
  return format::ObjectRef{std::move(name), bytes, ToHex(hash.Finish())};
}

Result<format::ObjectRef> VersionAttempt::PutPart(std::span<const ByteSpan> pieces) {
  const auto index = static_cast<uint32_t>(parts_.size());
  DELTAWIRE_ASSIGN(auto part, PutObject(format::UpdateName(number_, attempt_, index), pieces));
  parts_.push_back(part);
  return part;
}

Result<format::ObjectRef> VersionAttempt::PutTensorDigests(std::span<const Digest> digests) {
  const auto table = format::DigestTableBytes(digests);
  const ByteSpan piece = table;
  DELTAWIRE_ASSIGN(digests_, PutObject(format::DigestTableName(number_, attempt_), {&piece, 1}));
  return *digests_;
}

Status VersionAttempt::CheckParts(const format::Manifest& manifest) const {
  const bool same_parts =
      std::equal(manifest.parts.begin(), manifest.parts.end(), parts_.begin(), parts_.end(),
                 [](const auto& part, const auto& put) { return part.object == put; });
  if (same_parts && manifest.tensor_digests == digests_) return {};
  return Fail(
      Code::kInvalidArgument,
      "the manifest of version {} lists {} parts and {} digest table; expected exactly the {} parts, in "
      "their order, and the {} table that this attempt wrote",
      number_, manifest.parts.size(), manifest.tensor_digests ? 1 : 0, parts_.size(), digests_ ? 1 : 0);
}

Result<VersionRecord> VersionAttempt::Seal(format::Manifest manifest) {
  DELTAWIRE_TRY(writer_->CheckNotFenced());
  if (sealed_) return Fail(Code::kInvalidArgument, "version {} is sealed already", number_);
  manifest.run = writer_->options_.run;
  manifest.number = number_;
  manifest.writer = writer_->options_.writer;
  manifest.attempt = attempt_;
  manifest.created_unix_ns = static_cast<uint64_t>(writer_->clock_->UnixNanos());
  DELTAWIRE_TRY(format::CheckManifest(manifest));
  DELTAWIRE_TRY(CheckParts(manifest));
  if (writer_->newest_ && writer_->newest_->manifest.inventory != manifest.inventory)
    return Fail(Code::kMismatch,
                "version {} has inventory {}; the run's is {}; another model needs a run of its own", number_,
                manifest.inventory, writer_->newest_->manifest.inventory);
  const auto& base = manifest.base;
  if (base.kind == format::BaseRef::Kind::kVersion)
    DELTAWIRE_TRY(writer_->CheckVersion(base.number, &base.manifest, base.digest, "base"));
  if (manifest.alias_of)
    DELTAWIRE_TRY(writer_->CheckVersion(*manifest.alias_of, nullptr, manifest.digest, "original"));
  text_ = format::ManifestText(manifest);
  sealed_ = VersionRecord{std::move(manifest), ToHex(Sha256(AsBytes(text_)))};
  return *sealed_;
}

Status VersionAttempt::Commit() {
  if (state_ == State::kCommitted) return {};
  if (!sealed_) return Fail(Code::kInvalidArgument, "version {} is not sealed yet", number_);
  const auto status = writer_->CommitManifest(*sealed_, text_);
  if (status) {
    state_ = State::kCommitted;
    writer_->Committed(*sealed_);
  } else if (status.error().code() == Code::kIo) {
    state_ = State::kUnclear;
  }
  return status;
}

}  // namespace deltawire::sync
