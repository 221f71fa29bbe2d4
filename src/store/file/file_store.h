// A store in a folder: one file an object. Works on local file systems and on NFS.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/rng.h"
#include "store/store.h"

namespace deltawire {

// Writes go to a hidden file (".tmp-" and a random id) in the target's folder, are fsynced, then appear by
// link(2) (kIfAbsent) or rename(2) (kOverwrite), and the folders up to the root are fsynced. Where the file
// system has no hard links, renameat2(RENAME_NOREPLACE) is used; with neither, kIfAbsent is kUnsupported.
// Folders are created 0755 and files 0644, less what the process's umask takes: never writable for others.
// Below the root nothing that is a symbolic link is followed: such an entry is no object (kUnsupported when
// it is asked for by name, absent from List). Folders that Delete leaves empty are removed.
class FileStore final : public Store {
 public:
  // root: a path that may contain symbolic links. create: make the folder and its parents when missing;
  // otherwise a missing folder is kNotFound. clock and rng must outlive the store.
  static Result<std::unique_ptr<FileStore>> Open(const std::string& root, bool create,
                                                 Clock& clock = SystemClock(), Rng& rng = SystemRng());
  // For readers: makes nothing, and the folder may appear later. Until then reads are kNotFound.
  static Result<std::unique_ptr<FileStore>> OpenToRead(const std::string& root);

  std::string Describe() const override;
  StoreCapabilities capabilities() const override;
  Result<Bytes> Get(std::string_view name, uint64_t max_bytes) override;
  Result<Bytes> GetRange(std::string_view name, uint64_t offset, uint64_t length) override;
  Result<ObjectInfo> Stat(std::string_view name) override;
  Status Put(std::string_view name, ByteSpan bytes, Condition condition) override;
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override;
  Result<std::vector<ObjectInfo>> List(std::string_view prefix) override;
  Status Delete(std::string_view name) override;
  Result<uint64_t> CleanTemporary(int64_t min_age_ms) override;

 private:
  FileStore(std::string root, Clock& clock, Rng& rng) : root_(std::move(root)), clock_(&clock), rng_(&rng) {}

  std::string root_;
  Clock* clock_;
  Rng* rng_;
};

}  // namespace deltawire
