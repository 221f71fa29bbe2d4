// Publishing versions and anchors of a run: the only writer of a catalog.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "format/inventory.h"
#include "format/manifest.h"
#include "store/store.h"
#include "sync/records.h"
#include "tensor/digest.h"

namespace deltawire::sync {

class CatalogWriter;

// A version being published: parts first, the manifest last. One thread. Destroyed before its commit, it
// deletes its parts (best effort); after a commit whose outcome is unclear it leaves everything to
// CatalogWriter::Settle. Must not outlive its writer.
class VersionAttempt {
 public:
  ~VersionAttempt();
  VersionAttempt(const VersionAttempt&) = delete;
  VersionAttempt& operator=(const VersionAttempt&) = delete;

  uint64_t number() const { return number_; }
  const std::string& attempt() const { return attempt_; }

  // Writes the pieces, one after the other, as the next part. The caller adds the coding and the block
  // table's range to make the ManifestPart. After an error it may be repeated, or the attempt given up.
  Result<format::ObjectRef> PutPart(std::span<const ByteSpan> pieces);
  // For Manifest::tensor_digests; once. In inventory order.
  Result<format::ObjectRef> PutTensorDigests(std::span<const Digest> digests);

  // Fixes the manifest's bytes: run, number, writer, attempt and created_unix_ns are filled in.
  // kInvalidArgument unless parts and tensor_digests are exactly what was put here, CheckManifest accepts it,
  // and a base or original is the version it claims to be; kMismatch when the inventory is not the run's. The
  // record's hash is what an anchor written before Commit names. Once.
  Result<VersionRecord> Seal(format::Manifest manifest);

  // Creates the sealed manifest: the version exists from here on, durably. Then LATEST, best effort.
  // Repeating it after success does nothing.
  //  kFenced   another writer published this number, or a later one: this writer is finished for good
  //  kIo       unclear, the version may exist: call Commit again, or destroy the attempt and Settle later
  //  others    the version does not exist (unless an earlier try was unclear)
  Status Commit();

 private:
  friend class CatalogWriter;
  VersionAttempt(CatalogWriter& writer, uint64_t number, std::string attempt)
      : writer_(&writer), number_(number), attempt_(std::move(attempt)) {}

  Result<format::ObjectRef> PutObject(std::string name, std::span<const ByteSpan> pieces);
  Status CheckParts(const format::Manifest& manifest) const;

  CatalogWriter* writer_;
  uint64_t number_;
  std::string attempt_;
  std::vector<std::string> names_;  // of everything that may have been written
  std::vector<format::ObjectRef> parts_;
  std::optional<format::ObjectRef> digests_;
  std::optional<VersionRecord> sealed_;
  std::string text_;  // the sealed manifest's bytes
  enum class State : uint8_t { kOpen, kUnclear, kCommitted } state_ = State::kOpen;
};

// An anchor being written: a loadable checkpoint folder, its manifest last. One thread. Destroyed before its
// commit, it deletes its files (best effort). Must not outlive its writer.
class AnchorAttempt {
 public:
  ~AnchorAttempt();
  AnchorAttempt(const AnchorAttempt&) = delete;
  AnchorAttempt& operator=(const AnchorAttempt&) = delete;

  // A file of unknown size, written piece by piece and hashed on the way; it is listed once its Commit
  // succeeded. name: one component. The writer must not outlive the attempt; the condition of its Commit is
  // ignored.
  Result<std::unique_ptr<ObjectWriter>> CreateFile(std::string_view name);
  Status PutFile(std::string_view name, ByteSpan bytes);
  // For AnchorManifest::tensor_digests, as an object beside the files. In inventory order.
  Status PutTensorDigests(std::span<const Digest> digests);

  // Lists the files and makes the anchor visible. kIo: unclear, the anchor may exist; BeginAnchor for the
  // same record tells.
  Status Commit();

 private:
  friend class CatalogWriter;
  friend class AnchorFile;
  AnchorAttempt(CatalogWriter& writer, format::AnchorManifest manifest)
      : writer_(&writer), manifest_(std::move(manifest)) {}

  std::string ObjectName(std::string_view file) const;

  CatalogWriter* writer_;
  format::AnchorManifest manifest_;  // grows by each file
  std::vector<std::string> names_;   // of everything that may have been written
  bool keep_ = false;
};

// One thread at a time. After kFenced every call fails with kFenced, naming the other writer.
class CatalogWriter {
 public:
  struct Options {
    std::string run;     // Create: required; Resume: refuse any other run, empty = whichever is there
    std::string writer;  // random id of this publisher's lifetime; never reused
    // Declares that nobody else publishes here: the only way to use a store without create_if_absent.
    bool single_writer = false;
  };

  // Starts a run in a place without versions and anchors; kExists, saying whose they are, otherwise.
  // kUnsupported for a store without create_if_absent unless single_writer. clock and rng must outlive the
  // writer.
  static Result<std::unique_ptr<CatalogWriter>> Create(std::shared_ptr<Store> store, Options options,
                                                       Clock& clock = SystemClock(), Rng& rng = SystemRng());
  // Goes on after the newest version. kNotFound when there is none, kWrongRun for another run. The writer
  // before is fenced as soon as this one has committed.
  static Result<std::unique_ptr<CatalogWriter>> Resume(std::shared_ptr<Store> store, Options options,
                                                       Clock& clock = SystemClock(), Rng& rng = SystemRng());

  const std::string& run() const { return options_.run; }
  const std::string& writer() const { return options_.writer; }
  // The last version that certainly exists; nullopt before version 0.
  const std::optional<VersionRecord>& newest() const { return newest_; }
  uint64_t next_number() const { return newest_ ? newest_->number() + 1 : 0; }

  // Stores the inventory under its hash and returns the hash. Repeatable.
  Result<std::string> PutInventory(const format::Inventory& inventory);

  // number: next_number(). One attempt at a time; kInvalidArgument while one is open or unsettled.
  Result<std::unique_ptr<VersionAttempt>> BeginVersion(uint64_t number);

  // True after a commit that ended unclear and whose attempt is destroyed.
  bool unsettled() const { return pending_.has_value(); }
  // Repeats that commit until it is decided: the record of the version, which exists now, or nullopt when
  // nothing was pending. kIo: still unclear.
  Result<std::optional<VersionRecord>> Settle();

  // An anchor of a version: a committed one, or a sealed one about to be committed (so that version 0 never
  // exists without its anchor). kExists when the version has one. Leftovers of other attempts are replaced.
  Result<std::unique_ptr<AnchorAttempt>> BeginAnchor(const VersionRecord& version);

  // Deletes update objects that no manifest lists and files of anchors that have no manifest, if at least
  // min_age_ms old by the store's times, and temporary leftovers of that age; returns how many. Never what
  // this writer has open or unsettled, and nothing that a writer of catalogs would not have named so.
  // min_age_ms must exceed the longest time between a part and its manifest, retries included. kUnsupported
  // for a store without modification times. Reads the manifest of every version that has old objects.
  Result<uint64_t> CollectGarbage(int64_t min_age_ms);

 private:
  friend class VersionAttempt;
  friend class AnchorAttempt;
  friend class AnchorFile;

  struct Pending {
    VersionRecord record;
    std::string text;
  };

  CatalogWriter(std::shared_ptr<Store> store, Options options, Clock& clock, Rng& rng)
      : store_(std::move(store)), options_(std::move(options)), clock_(&clock), rng_(&rng) {}

  static Status CheckStart(const Store& store, const Options& options);
  Status CheckNotFenced() const;
  tl::unexpected<Error> Fence(std::string_view found);
  // kInvalidArgument unless the version exists with this digest, and this hash if one is given.
  Status CheckVersion(uint64_t number, const std::string* sha256, const Digest& digest,
                      std::string_view what);

  Status CommitManifest(const VersionRecord& record, const std::string& text);
  void Committed(const VersionRecord& record);
  // Success: our bytes are there. kNotFound: nothing is. kFenced: another's.
  Status ReadBack(const VersionRecord& record, const std::string& text);
  // Says which version above `number` exists, if LATEST knows of one: a writer that slept while another took
  // over, and whose number retention has since made free again, would meet nobody there.
  std::optional<std::string> LaterVersion(uint64_t number);
  // Create-if-absent, or its imitation for a declared single writer.
  Status PutIfAbsent(const std::string& name, ByteSpan bytes);
  void DeleteAll(const std::vector<std::string>& names);

  Result<std::vector<std::string>> OldUnlistedUpdates(int64_t newest_unix_nanos);
  Result<std::vector<std::string>> OldUnlistedAnchorFiles(int64_t newest_unix_nanos);

  std::shared_ptr<Store> store_;
  Options options_;
  Clock* clock_;
  Rng* rng_;
  std::optional<VersionRecord> newest_;
  std::optional<Pending> pending_;
  std::optional<Error> fenced_;
  std::optional<std::string> open_attempt_;  // attempt id
  std::optional<uint64_t> open_anchor_;      // version number
};

}  // namespace deltawire::sync
