// The system calls of the file store: descriptors with an owner, paths that can't leave their root, and errno
// as Error.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace deltawire::posix {

// Owns an open file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd();
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// "open /data/x: Permission denied", with the code its reader acts upon: kNotFound for ENOENT and ENOTDIR,
// kExists for EEXIST, kNoSpace for a full disk, quota or file-size limit, kUnsupported for a symbolic link
// where none is followed, kIo for the rest.
tl::unexpected<Error> SystemError(int error, std::string_view action, std::string_view path);

// Opens `path` (components joined by '/', "" = the root itself) as a folder below `root`, following symbolic
// links only inside `root` itself. create: makes missing components 0755.
Result<Fd> OpenFolder(const std::string& root, std::string_view path, bool create);

// All bytes, continuing after short writes and interrupts.
Status WriteAll(int fd, ByteSpan bytes, std::string_view path);
// Fills `out` from `offset`; returns how many bytes there were before the end.
Result<uint64_t> ReadAt(int fd, uint64_t offset, MutableByteSpan out, std::string_view path);
Status Sync(int fd, std::string_view path);
// Syncs the folder `path` and every folder above it up to and including `root`. One that is gone again has
// nothing left to keep.
Status SyncFolders(const std::string& root, std::string_view path);

// An entry of a folder; symbolic links are reported as such.
struct Entry {
  std::string name;
  struct stat status;
};
// Entries in no particular order, without "." and "..". One that disappears meanwhile is left out.
Result<std::vector<Entry>> ReadFolder(const Fd& folder, std::string_view path);

int64_t ModifiedNanos(const struct stat& status);

}  // namespace deltawire::posix
