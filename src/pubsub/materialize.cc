#include "pubsub/materialize.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "pubsub/file_io.h"

namespace deltawire::pubsub {
namespace {

namespace fs = std::filesystem;

// The folder that is being filled. Locked while its owner lives; removed with it unless renamed.
class NewFolder {
 public:
  static Result<NewFolder> Create(std::string path) {
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return SystemError("create", path, errno);
    NewFolder folder;
    folder.lock_ = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder.lock_ < 0) return SystemError("open", path, errno);
    if (flock(folder.lock_, LOCK_EX | LOCK_NB) != 0) {
      return Fail(Code::kExists, "another process is filling {}; wait for it or stop it", path);
    }
    folder.path_ = std::move(path);
    std::error_code error;
    for (const auto& left_over : fs::directory_iterator(folder.path_, error))
      fs::remove_all(left_over, error);
    if (error) return SystemError("empty", folder.path_, error.value());
    return folder;
  }
  ~NewFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
    if (lock_ >= 0) close(lock_);
  }
  NewFolder(NewFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})), lock_(std::exchange(other.lock_, -1)) {}
  NewFolder& operator=(NewFolder&&) = delete;

  const std::string& path() const { return path_; }

  Status RenameTo(const std::string& to) {
    if (fsync(lock_) != 0) return SystemError("sync", path_, errno);
    if (rename(path_.c_str(), to.c_str()) != 0) return SystemError("rename", path_ + " to " + to, errno);
    const std::string parent = fs::path(std::exchange(path_, {})).parent_path().string();
    const int fd = open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return SystemError("open", parent, errno);
    const int synced = fsync(fd);
    const int failure = errno;
    close(fd);
    if (synced != 0) return SystemError("sync", parent, failure);
    return {};
  }

 private:
  NewFolder() = default;

  std::string path_;
  int lock_ = -1;
};

Status CopyFile(sync::Catalog& catalog, const format::AnchorManifest& anchor, size_t index,
                const std::string& to, const std::function<void(uint64_t)>& copied) {
  const int file = open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return SystemError("create", to, errno);
  Status status = catalog.ReadAnchorFile(anchor, index, [&](ByteSpan piece) -> Status {
    for (ByteSpan rest = piece; !rest.empty();) {
      const ssize_t written = write(file, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError("write", to, errno);
      rest = rest.subspan(static_cast<size_t>(written));
    }
    copied(piece.size());
    return {};
  });
  if (status && fsync(file) != 0) status = SystemError("sync", to, errno);
  if (close(file) != 0 && status) status = SystemError("close", to, errno);
  return status;
}

Result<format::AnchorManifest> NewestAnchor(sync::Catalog& catalog, std::optional<uint64_t> at_most) {
  DELTAWIRE_ASSIGN(const auto numbers, catalog.Anchors());
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    if (!at_most || *number <= *at_most) return catalog.LoadAnchor(*number);
  }
  return Fail(
      Code::kNotFound,
      "{} has no full checkpoint{}; copy the checkpoint that the run started from into the folder first, or "
      "let the publisher write one",
      catalog.store().Describe(), at_most ? fmt::format(" at or below version {}", *at_most) : "");
}

}  // namespace

Result<uint64_t> MaterializeAnchor(sync::Catalog& catalog, const std::string& folder,
                                   const MaterializeOptions& options) {
  std::error_code error;
  if (fs::exists(folder, error) && !(fs::is_directory(folder, error) && fs::is_empty(folder, error))) {
    return Fail(Code::kExists, "{} is not an empty folder; name a new one", folder);
  }
  DELTAWIRE_ASSIGN(const auto anchor, NewestAnchor(catalog, options.at_most));
  uint64_t total = 0;
  for (const auto& file : anchor.files) total += file.bytes;

  fs::path target = fs::absolute(folder).lexically_normal();
  if (target.filename().empty()) target = target.parent_path();  // a trailing slash
  const std::string name = fmt::format(".{}.deltawire-new", target.filename().string());
  DELTAWIRE_ASSIGN(NewFolder made, NewFolder::Create((target.parent_path() / name).string()));
  uint64_t done = 0;
  for (size_t i = 0; i < anchor.files.size(); ++i) {
    // Names in anchor manifests are single safe components (format::CheckAnchorManifest).
    DELTAWIRE_TRY(CopyFile(catalog, anchor, i, made.path() + "/" + anchor.files[i].name, [&](uint64_t bytes) {
      done += bytes;
      if (options.progress) options.progress(done, total);
    }));
  }
  DELTAWIRE_TRY(made.RenameTo(target.string()));
  return anchor.number;
}

}  // namespace deltawire::pubsub
