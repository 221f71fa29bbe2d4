#include "store/file/file_store.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/object_name.h"
#include "store/checks.h"
#include "store/file/posix.h"

namespace deltawire {
namespace {

using posix::Fd;
using posix::SystemError;

constexpr std::string_view kTemporaryPrefix = ".tmp-";

// "a/b/c" -> {"a/b", "c"}.
struct SplitName {
  std::string folder;
  std::string file;
};
SplitName Split(std::string_view name) {
  const auto slash = name.rfind('/');
  if (slash == std::string_view::npos) return {"", std::string(name)};
  return {std::string(name.substr(0, slash)), std::string(name.substr(slash + 1))};
}

std::string JoinNames(std::string_view folder, std::string_view name) {
  return folder.empty() ? std::string(name) : fmt::format("{}/{}", folder, name);
}

struct OpenObject {
  Fd fd;
  struct stat status;
  std::string path;
};

Result<OpenObject> OpenForReading(const std::string& root, std::string_view name) {
  DELTAWIRE_TRY(CheckObjectName(name));
  const auto [folder_name, file_name] = Split(name);
  OpenObject object{Fd(), {}, fmt::format("{}/{}", root, name)};
  DELTAWIRE_ASSIGN(const auto folder, posix::OpenFolder(root, folder_name, /*create=*/false));
  // O_NONBLOCK: a stranger's pipe under this name must not block the reader.
  object.fd = Fd(::openat(folder.get(), file_name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!object.fd) return SystemError(errno, "open", object.path);
  if (::fstat(object.fd.get(), &object.status) != 0) return SystemError(errno, "stat", object.path);
  if (!S_ISREG(object.status.st_mode))
    return Fail(Code::kNotFound, "open {}: is not a regular file", object.path);
  return object;
}

Result<Bytes> ReadRange(const OpenObject& object, uint64_t offset, uint64_t length) {
  Bytes bytes(length);
  DELTAWIRE_ASSIGN(const auto got, posix::ReadAt(object.fd.get(), offset, bytes, object.path));
  if (got != length)
    return Fail(Code::kCorrupt, "read {}: ended after {} of {} bytes at offset {}; somebody truncated it",
                object.path, got, length, offset);
  return bytes;
}

class FileWriter final : public ObjectWriter {
 public:
  static Result<std::unique_ptr<FileWriter>> Open(const std::string& root, std::string_view name,
                                                  std::string temporary) {
    const auto [folder_name, file_name] = Split(name);
    // Delete removes folders that it leaves empty: one may go between its creation and its first file. Losing
    // that race again and again takes a deleter as busy as this loop.
    constexpr int kAttempts = 100;
    for (int attempt = 1;; ++attempt) {
      auto folder = posix::OpenFolder(root, folder_name, /*create=*/true);
      if (!folder) {
        if (folder.error().code() == Code::kNotFound && attempt < kAttempts &&
            ::access(root.c_str(), F_OK) == 0)
          continue;
        return Fail(AsWriteError(folder.error()));
      }
      Fd fd(::openat(folder->get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                     0644));
      if (fd)
        return std::unique_ptr<FileWriter>(new FileWriter(root, std::string(name), folder_name, file_name,
                                                          std::move(temporary), *std::move(folder),
                                                          std::move(fd)));
      if (errno != ENOENT || attempt == kAttempts)
        return Fail(AsWriteError(SystemError(errno, "create", fmt::format("{}/{}", root, name)).value()));
    }
  }

  ~FileWriter() override {
    if (!temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
  }

  Status Append(ByteSpan bytes) override { return posix::WriteAll(fd_.get(), bytes, path_); }

  Status Commit(Condition condition) override {
    DELTAWIRE_TRY(posix::Sync(fd_.get(), path_));
    DELTAWIRE_TRY(condition == Condition::kIfAbsent ? Link() : Rename(0));
    return posix::SyncFolders(root_, folder_name_);
  }

 private:
  FileWriter(std::string root, std::string name, std::string folder_name, std::string file_name,
             std::string temporary, Fd folder, Fd fd)
      : root_(std::move(root)),
        path_(fmt::format("{}/{}", root_, name)),
        folder_name_(std::move(folder_name)),
        file_name_(std::move(file_name)),
        temporary_(std::move(temporary)),
        folder_(std::move(folder)),
        fd_(std::move(fd)) {}

  // A missing folder is "not found" for a reader; for a writer the store failed.
  static Error AsWriteError(const Error& error) {
    return error.code() == Code::kNotFound ? Error(Code::kIo, error.message()) : error;
  }

  Status Link() {
    if (::linkat(folder_.get(), temporary_.c_str(), folder_.get(), file_name_.c_str(), 0) != 0) {
      const int error = errno;
      if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK)
        return Rename(RENAME_NOREPLACE);
      // Over NFS a repeated request finds the link that the first one made: two names say that it is ours.
      struct stat status;
      const bool linked = error == EEXIST && ::fstat(fd_.get(), &status) == 0 && status.st_nlink == 2;
      if (!linked) return Fail(AsWriteError(SystemError(error, "create", path_).value()));
    }
    ::unlinkat(folder_.get(), temporary_.c_str(), 0);
    temporary_.clear();
    return {};
  }

  Status Rename(unsigned flags) {
    if (::renameat2(folder_.get(), temporary_.c_str(), folder_.get(), file_name_.c_str(), flags) != 0) {
      const int error = errno;
      if (flags != 0 && (error == EINVAL || error == ENOSYS))
        return Fail(
            Code::kUnsupported,
            "create {}: this file system has neither hard links nor exclusive rename; publish to another one",
            path_);
      return Fail(AsWriteError(SystemError(error, "rename to", path_).value()));
    }
    temporary_.clear();
    return {};
  }

  std::string root_;
  std::string path_;
  std::string folder_name_;
  std::string file_name_;
  std::string temporary_;  // empty once committed
  Fd folder_;
  Fd fd_;
};

// Calls visit(path below the root, status) for everything below `folder`; visit returns whether to descend
// into a folder. A folder that disappears meanwhile, or is a link, is skipped. One descriptor is open at a
// time, however deep.
template <class Visit>
Status Walk(const std::string& root, const std::string& folder, const Visit& visit) {
  std::vector<std::string> pending{folder};
  while (!pending.empty()) {
    const auto path = std::move(pending.back());
    pending.pop_back();
    const auto opened = posix::OpenFolder(root, path, /*create=*/false);
    if (!opened) {
      const auto code = opened.error().code();
      if ((code == Code::kNotFound || code == Code::kUnsupported) && !path.empty()) continue;
      return Fail(opened.error());
    }
    DELTAWIRE_ASSIGN(const auto entries, posix::ReadFolder(*opened, fmt::format("{}/{}", root, path)));
    for (const auto& entry : entries) {
      auto name = JoinNames(path, entry.name);
      if (visit(name, entry.status) && S_ISDIR(entry.status.st_mode)) pending.push_back(std::move(name));
    }
  }
  return {};
}

Result<std::string> AbsolutePath(const std::string& root) {
  if (root.empty()) return Fail(Code::kInvalidArgument, "the path of a file store is empty");
  std::error_code error;
  auto absolute = std::filesystem::absolute(root, error).lexically_normal().string();
  if (error) return SystemError(error.value(), "resolve", root);
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  return absolute;
}

}  // namespace

Result<std::unique_ptr<FileStore>> FileStore::OpenToRead(const std::string& root) {
  DELTAWIRE_ASSIGN(auto absolute, AbsolutePath(root));
  // What is there and is no folder will not become one.
  const auto folder = posix::OpenFolder(absolute, "", /*create=*/false);
  std::error_code missing;
  if (!folder && std::filesystem::exists(absolute, missing)) return Fail(folder.error());
  return std::unique_ptr<FileStore>(new FileStore(std::move(absolute), SystemClock(), SystemRng()));
}

Result<std::unique_ptr<FileStore>> FileStore::Open(const std::string& root, bool create, Clock& clock,
                                                   Rng& rng) {
  DELTAWIRE_ASSIGN(auto absolute, AbsolutePath(root));
  if (create) {
    std::error_code error;
    // Through OpenFolder, so that new folders have its mode; links in the part that exists are followed.
    std::filesystem::path existing = absolute;
    while (!std::filesystem::exists(existing, error) && existing.has_relative_path())
      existing = existing.parent_path();
    const auto missing = std::filesystem::path(absolute).lexically_relative(existing).string();
    const auto base = existing.string();
    const std::string_view below = missing == "." ? std::string_view() : std::string_view(missing);
    DELTAWIRE_TRY(posix::OpenFolder(base, below, /*create=*/true));
    if (!below.empty()) DELTAWIRE_TRY(posix::SyncFolders(base, below));
  } else {
    DELTAWIRE_TRY(posix::OpenFolder(absolute, "", /*create=*/false));
  }
  return std::unique_ptr<FileStore>(new FileStore(std::move(absolute), clock, rng));
}

std::string FileStore::Describe() const { return fmt::format("file store {}", root_); }

StoreCapabilities FileStore::capabilities() const {
  return {.create_if_absent = true, .modification_times = true};
}

Result<Bytes> FileStore::Get(std::string_view name, uint64_t max_bytes) {
  DELTAWIRE_ASSIGN(const auto object, OpenForReading(root_, name));
  const auto size_bytes = static_cast<uint64_t>(object.status.st_size);
  DELTAWIRE_TRY(CheckObjectSize(name, size_bytes, max_bytes));
  return ReadRange(object, 0, size_bytes);
}

Result<Bytes> FileStore::GetRange(std::string_view name, uint64_t offset, uint64_t length) {
  DELTAWIRE_ASSIGN(const auto object, OpenForReading(root_, name));
  DELTAWIRE_TRY(CheckObjectRange(name, static_cast<uint64_t>(object.status.st_size), offset, length));
  return ReadRange(object, offset, length);
}

Result<ObjectInfo> FileStore::Stat(std::string_view name) {
  DELTAWIRE_ASSIGN(const auto object, OpenForReading(root_, name));
  return ObjectInfo{std::string(name), static_cast<uint64_t>(object.status.st_size),
                    posix::ModifiedNanos(object.status)};
}

Status FileStore::Put(std::string_view name, ByteSpan bytes, Condition condition) {
  DELTAWIRE_ASSIGN(const auto writer, Create(name));
  DELTAWIRE_TRY(writer->Append(bytes));
  return writer->Commit(condition);
}

Result<std::unique_ptr<ObjectWriter>> FileStore::Create(std::string_view name) {
  DELTAWIRE_TRY(CheckObjectName(name));
  return FileWriter::Open(root_, name, fmt::format("{}{}", kTemporaryPrefix, rng_->HexId(16)));
}

Result<std::vector<ObjectInfo>> FileStore::List(std::string_view prefix) {
  std::vector<ObjectInfo> infos;
  // Only the folder that the prefix names needs reading, if it can be one of ours.
  const auto folder = Split(prefix).folder;
  if (!folder.empty() && !IsSafeObjectName(folder)) return infos;
  DELTAWIRE_TRY(Walk(root_, folder, [&](const std::string& name, const struct stat& status) {
    const bool inside = name.starts_with(prefix);
    if (!IsSafeObjectName(name)) return false;
    if (S_ISREG(status.st_mode) && inside)
      infos.push_back({name, static_cast<uint64_t>(status.st_size), posix::ModifiedNanos(status)});
    return inside || prefix.starts_with(name + "/");
  }));
  std::sort(infos.begin(), infos.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return infos;
}

Status FileStore::Delete(std::string_view name) {
  DELTAWIRE_TRY(CheckObjectName(name));
  auto [folder_name, file_name] = Split(name);
  const auto path = fmt::format("{}/{}", root_, name);
  {
    const auto folder = posix::OpenFolder(root_, folder_name, /*create=*/false);
    if (!folder) return folder.error().code() == Code::kNotFound ? Status() : Status(Fail(folder.error()));
    if (::unlinkat(folder->get(), file_name.c_str(), 0) != 0) {
      // A folder of that name is no object, so the object is already absent.
      if (errno == ENOENT || errno == EISDIR) return {};
      return SystemError(errno, "delete", path);
    }
    // Durable, because callers delete in an order (manifests before parts).
    DELTAWIRE_TRY(posix::Sync(folder->get(), path));
  }
  while (!folder_name.empty()) {
    const auto parent = Split(folder_name);
    const auto folder = posix::OpenFolder(root_, parent.folder, /*create=*/false);
    if (!folder || ::unlinkat(folder->get(), parent.file.c_str(), AT_REMOVEDIR) != 0) break;
    folder_name = parent.folder;
  }
  return {};
}

Result<uint64_t> FileStore::CleanTemporary(int64_t min_age_ms) {
  const int64_t newest = clock_->UnixNanos() - min_age_ms * 1'000'000;
  std::vector<std::string> leftovers;
  DELTAWIRE_TRY(Walk(root_, "", [&](const std::string& name, const struct stat& status) {
    if (S_ISREG(status.st_mode) && Split(name).file.starts_with(kTemporaryPrefix) &&
        posix::ModifiedNanos(status) <= newest)
      leftovers.push_back(name);
    return IsSafeObjectName(name);
  }));
  uint64_t removed = 0;
  for (const auto& name : leftovers) {
    const auto [folder_name, file_name] = Split(name);
    const auto folder = posix::OpenFolder(root_, folder_name, /*create=*/false);
    if (!folder) continue;
    if (::unlinkat(folder->get(), file_name.c_str(), 0) == 0)
      ++removed;
    else if (errno != ENOENT)
      return SystemError(errno, "delete", fmt::format("{}/{}", root_, name));
  }
  return removed;
}

}  // namespace deltawire
