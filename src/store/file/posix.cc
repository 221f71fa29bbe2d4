#include "store/file/posix.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

namespace deltawire::posix {
namespace {

// The pieces of a path, front to back.
std::string_view TakeComponent(std::string_view& path) {
  const auto slash = path.find('/');
  const auto component = path.substr(0, slash);
  path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  return component;
}

std::string Join(const std::string& root, std::string_view path) {
  return path.empty() ? root : fmt::format("{}/{}", root, path);
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

tl::unexpected<Error> SystemError(int error, std::string_view action, std::string_view path) {
  const auto why = std::generic_category().message(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR: return Fail(Code::kNotFound, "{} {}: {}", action, path, why);
    case EEXIST: return Fail(Code::kExists, "{} {}: already exists", action, path);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Fail(Code::kNoSpace, "{} {}: {}; free space or raise the limit, then repeat", action, path, why);
    case ELOOP:
      return Fail(Code::kUnsupported, "{} {}: is or passes through a symbolic link, and stores follow none",
                  action, path);
    default: return Fail(Code::kIo, "{} {}: {}", action, path, why);
  }
}

Result<Fd> OpenFolder(const std::string& root, std::string_view path, bool create) {
  Fd folder(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return SystemError(errno, "open folder", root);
  const auto whole = Join(root, path);
  while (!path.empty()) {
    const std::string component(TakeComponent(path));
    constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    Fd next(::openat(folder.get(), component.c_str(), kFlags));
    if (!next && errno == ENOENT && create) {
      if (::mkdirat(folder.get(), component.c_str(), 0755) != 0 && errno != EEXIST)
        return SystemError(errno, "create folder", whole);
      next = Fd(::openat(folder.get(), component.c_str(), kFlags));
    }
    if (!next) {
      const int error = errno;
      // O_DIRECTORY and O_NOFOLLOW together report a symbolic link as ENOTDIR.
      struct stat status;
      const bool is_link = error == ENOTDIR &&
                           ::fstatat(folder.get(), component.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                           S_ISLNK(status.st_mode);
      return SystemError(is_link ? ELOOP : error, "open folder", whole);
    }
    folder = std::move(next);
  }
  return folder;
}

Status WriteAll(int fd, ByteSpan bytes, std::string_view path) {
  while (!bytes.empty()) {
    const auto written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(errno, "write", path);
    if (written == 0) return SystemError(EIO, "write", path);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Result<uint64_t> ReadAt(int fd, uint64_t offset, MutableByteSpan out, std::string_view path) {
  uint64_t done = 0;
  while (done < out.size()) {
    const auto got = ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, "read", path);
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  return done;
}

Status Sync(int fd, std::string_view path) {
  if (::fsync(fd) != 0) return SystemError(errno, "fsync", path);
  return {};
}

Status SyncFolders(const std::string& root, std::string_view path) {
  for (;;) {
    const auto folder = OpenFolder(root, path, /*create=*/false);
    if (folder)
      DELTAWIRE_TRY(Sync(folder->get(), Join(root, path)));
    else if (folder.error().code() != Code::kNotFound)
      return Fail(folder.error());
    if (path.empty()) return {};
    const auto slash = path.rfind('/');
    path = slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
  }
}

Result<std::vector<Entry>> ReadFolder(const Fd& folder, std::string_view path) {
  // fdopendir takes a descriptor over, and with it the position: it gets one of its own.
  const int own = ::openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return SystemError(errno, "list", path);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(own), ::closedir);
  if (!stream) {
    const int error = errno;
    ::close(own);
    return SystemError(error, "list", path);
  }
  std::vector<Entry> entries;
  for (;;) {
    errno = 0;
    const dirent* item = ::readdir(stream.get());
    if (item == nullptr) {
      if (errno != 0) return SystemError(errno, "list", path);
      return entries;
    }
    Entry entry{item->d_name, {}};
    if (entry.name == "." || entry.name == "..") continue;
    if (::fstatat(folder.get(), item->d_name, &entry.status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;
      return SystemError(errno, "stat", fmt::format("{}/{}", path, entry.name));
    }
    entries.push_back(std::move(entry));
  }
}

int64_t ModifiedNanos(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace deltawire::posix
