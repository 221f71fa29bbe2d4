#include "sync/catalog_writer.h"

#include <utility>

#include "format/text.h"
#include "sync/catalog.h"
#include "sync/latest.h"

namespace deltawire::sync {
namespace {

constexpr std::string_view kTakenOver =
    "another publisher has taken this run over; stop this one, or start it again with resume";

}  // namespace

Status CatalogWriter::CheckStart(const Store& store, const Options& options) {
  if (!format::IsIdentifier(options.writer))
    return Fail(Code::kInvalidArgument, "writer id \"{}\": expected 1 to 64 letters, digits, _ or -",
                options.writer);
  if (store.capabilities().create_if_absent || options.single_writer) return {};
  return Fail(
      Code::kUnsupported,
      "{} can't create an object only if it is absent, so two publishers could overwrite each other; use "
      "another store, or declare that this is the only publisher (single_writer)",
      store.Describe());
}

Result<std::unique_ptr<CatalogWriter>> CatalogWriter::Create(std::shared_ptr<Store> store, Options options,
                                                             Clock& clock, Rng& rng) {
  DELTAWIRE_TRY(CheckStart(*store, options));
  if (!format::IsRunName(options.run))
    return Fail(Code::kInvalidArgument,
                "run id \"{}\": expected 1 to 256 bytes of UTF-8 without control characters", options.run);
  Catalog catalog(store);
  const auto newest = catalog.Newest();
  if (newest) {
    const auto record = catalog.Load(*newest);
    const auto whose = record ? fmt::format("of run \"{}\", the last by writer {}", record->manifest.run,
                                            record->manifest.writer)
                              : fmt::format("(the last is unreadable: {})", record.error().message());
    return Fail(Code::kExists,
                "{} already holds versions up to {} {}; resume that run, or publish to another location",
                store->Describe(), *newest, whose);
  }
  if (newest.error().code() != Code::kNotFound) return Fail(newest.error());
  DELTAWIRE_ASSIGN(const auto anchors, catalog.Anchors());
  if (!anchors.empty())
    return Fail(Code::kExists,
                "{} holds no version, but anchor {} of an earlier run; publish to another location",
                store->Describe(), anchors.back());
  return std::unique_ptr<CatalogWriter>(new CatalogWriter(std::move(store), std::move(options), clock, rng));
}

Result<std::unique_ptr<CatalogWriter>> CatalogWriter::Resume(std::shared_ptr<Store> store, Options options,
                                                             Clock& clock, Rng& rng) {
  DELTAWIRE_TRY(CheckStart(*store, options));
  Catalog catalog(store, options.run.empty() ? std::nullopt : std::optional(options.run));
  DELTAWIRE_ASSIGN(const auto number, catalog.Newest());
  DELTAWIRE_ASSIGN(auto newest, catalog.Load(number));
  options.run = newest.manifest.run;
  std::unique_ptr<CatalogWriter> writer(new CatalogWriter(std::move(store), std::move(options), clock, rng));
  writer->newest_ = std::move(newest);
  return writer;
}

Status CatalogWriter::CheckNotFenced() const {
  if (fenced_) return Fail(*fenced_);
  return {};
}

tl::unexpected<Error> CatalogWriter::Fence(std::string_view found) {
  fenced_ = Error(Code::kFenced, fmt::format("{}; this is writer {} of run \"{}\": {}", found,
                                             options_.writer, options_.run, kTakenOver));
  return Fail(*fenced_);
}

Result<std::string> CatalogWriter::PutInventory(const format::Inventory& inventory) {
  DELTAWIRE_TRY(CheckNotFenced());
  DELTAWIRE_TRY(format::CheckInventory(inventory));
  const auto text = format::InventoryText(inventory);
  const auto hash = format::InventoryHash(inventory);
  const auto name = format::InventoryName(hash);
  const auto there = store_->Get(name, text.size());
  if (there && AsText(*there) == text) return hash;
  // Absent, or damaged: its name says what it must hold.
  DELTAWIRE_TRY(store_->Put(name, AsBytes(text), Condition::kOverwrite));
  return hash;
}

Result<std::unique_ptr<VersionAttempt>> CatalogWriter::BeginVersion(uint64_t number) {
  DELTAWIRE_TRY(CheckNotFenced());
  if (pending_)
    return Fail(Code::kInvalidArgument, "version {} is unsettled; settle it before another version is begun",
                pending_->record.number());
  if (open_attempt_) return Fail(Code::kInvalidArgument, "attempt {} is still open", *open_attempt_);
  if (number != next_number())
    return Fail(Code::kInvalidArgument, "version {} can't be begun; the next one is {}", number,
                next_number());
  open_attempt_ = rng_->HexId(16);
  return std::unique_ptr<VersionAttempt>(new VersionAttempt(*this, number, *open_attempt_));
}

Result<std::optional<VersionRecord>> CatalogWriter::Settle() {
  DELTAWIRE_TRY(CheckNotFenced());
  if (!pending_) return std::nullopt;
  const auto status = CommitManifest(pending_->record, pending_->text);
  if (!status) {
    if (status.error().code() == Code::kFenced) pending_.reset();
    return Fail(status.error());
  }
  auto record = std::move(pending_->record);
  pending_.reset();
  Committed(record);
  return record;
}

Status CatalogWriter::CommitManifest(const VersionRecord& record, const std::string& text) {
  DELTAWIRE_TRY(CheckNotFenced());
  if (const auto later = LaterVersion(record.number())) {
    // Ours may have been there before the other began: then it is published, and the next one is refused.
    const auto found = ReadBack(record, text);
    if (found) return {};
    if (found.error().code() != Code::kNotFound) return found;
    return Fence(*later);
  }
  const auto put = PutIfAbsent(format::ManifestName(record.number()), AsBytes(text));
  if (put) return {};
  // Whatever the answer was, the store knows: a repeated request may have met its own first try.
  const auto found = ReadBack(record, text);
  if (found) return {};
  if (found.error().code() == Code::kFenced) return found;
  const bool surely_absent = found.error().code() == Code::kNotFound && put.error().code() != Code::kIo &&
                             put.error().code() != Code::kExists;
  if (surely_absent)
    return Fail(put.error().Within(fmt::format("version {} was not published", record.number())));
  return Fail(
      Code::kIo,
      "version {} may or may not be published: {}; reading it back: {}; it is decided when the commit is "
      "repeated",
      record.number(), put.error().message(), found.error().message());
}

void CatalogWriter::Committed(const VersionRecord& record) {
  newest_ = record;
  // A hint: readers do without it, so its failure is none.
  (void)store_->Put(kLatestName, AsBytes(LatestText(record.number())), Condition::kOverwrite);
}

Status CatalogWriter::ReadBack(const VersionRecord& record, const std::string& text) {
  const auto name = format::ManifestName(record.number());
  DELTAWIRE_ASSIGN(const auto there, store_->Get(name, format::kMaxManifestBytes));
  if (AsText(there) == text) return {};
  const auto other = format::ParseManifest(there);
  return Fence(other
                   ? fmt::format("version {} was published by writer {} of run \"{}\" (attempt {})",
                                 record.number(), other->writer, other->run, other->attempt)
                   : fmt::format("{} holds something that is not ours ({})", name, other.error().message()));
}

std::optional<std::string> CatalogWriter::LaterVersion(uint64_t number) {
  const auto hint = ReadLatest(*store_);
  if (!hint || *hint <= number) return std::nullopt;
  const auto there = store_->Get(format::ManifestName(*hint), format::kMaxManifestBytes);
  if (!there) return std::nullopt;
  const auto other = format::ParseManifest(*there);
  return fmt::format(
      "version {} exists already, published by writer {}, while version {} was to be published", *hint,
      other ? other->writer : "(unreadable)", number);
}

Status CatalogWriter::PutIfAbsent(const std::string& name, ByteSpan bytes) {
  if (store_->capabilities().create_if_absent) return store_->Put(name, bytes, Condition::kIfAbsent);
  const auto there = store_->Stat(name);
  if (there) return Fail(Code::kExists, "object {} already exists in {}", name, store_->Describe());
  if (there.error().code() != Code::kNotFound) return Fail(there.error());
  return store_->Put(name, bytes, Condition::kOverwrite);
}

Status CatalogWriter::CheckVersion(uint64_t number, const std::string* sha256, const Digest& digest,
                                   std::string_view what) {
  auto record = newest_;
  if (!record || record->number() != number) {
    Catalog catalog(store_, options_.run);
    DELTAWIRE_ASSIGN(record, catalog.Load(number));
  }
  if (sha256 != nullptr && record->sha256 != *sha256)
    return Fail(Code::kInvalidArgument, "{} version {} has a manifest with SHA-256 {}; {} was given", what,
                number, record->sha256, *sha256);
  if (record->manifest.digest != digest)
    return Fail(Code::kInvalidArgument, "{} version {} has digest {}; {} was given", what, number,
                record->manifest.digest.Hex(), digest.Hex());
  return {};
}

void CatalogWriter::DeleteAll(const std::vector<std::string>& names) {
  for (const auto& name : names) (void)store_->Delete(name);
}

}  // namespace deltawire::sync
