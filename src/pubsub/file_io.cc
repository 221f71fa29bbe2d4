#include "pubsub/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

namespace deltawire::pubsub {
namespace {

Status WriteAll(int file, const std::string& path, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return SystemError("write", path, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", folder, errno);
  const int synced = fsync(fd);
  const int error = errno;
  close(fd);
  if (synced != 0) return SystemError("sync", folder, error);
  return {};
}

}  // namespace

tl::unexpected<Error> SystemError(std::string_view what, std::string_view path, int error_number) {
  const bool full = error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG;
  return Fail(full ? Code::kNoSpace : Code::kIo, "can't {} {}: {}", what, path, std::strerror(error_number));
}

Status WriteFileDurably(const std::string& path, std::span<const ByteSpan> pieces) {
  const std::string temporary = path + ".tmp";
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return SystemError("create", temporary, errno);
  Status status;
  for (const ByteSpan piece : pieces) {
    if (status) status = WriteAll(file, temporary, piece);
  }
  if (status && fsync(file) != 0) status = SystemError("sync", temporary, errno);
  if (close(file) != 0 && status) status = SystemError("close", temporary, errno);
  if (status && rename(temporary.c_str(), path.c_str()) != 0)
    status = SystemError("rename", temporary, errno);
  if (!status) {
    unlink(temporary.c_str());
    return status;
  }
  return SyncFolderOf(path);
}

Status CopyFile(const std::string& from, const std::string& to) {
  const int source = open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (source < 0) return SystemError("open", from, errno);
  struct stat info{};
  const int target = fstat(source, &info) == 0 ? open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                                                      (info.st_mode & 0777) | S_IRUSR | S_IWUSR)
                                               : -1;
  if (target < 0) {
    const int error = errno;
    close(source);
    return SystemError("create", to, error);
  }
  Status status;
  std::vector<uint8_t> buffer;  // only where the kernel can't copy between the two
  while (status) {
    constexpr size_t kPiece = size_t{1} << 30;
    ssize_t copied = buffer.empty() ? copy_file_range(source, nullptr, target, nullptr, kPiece, 0)
                                    : read(source, buffer.data(), buffer.size());
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0 && buffer.empty() &&
        (errno == EXDEV || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS)) {
      buffer.resize(1 << 20);
      continue;
    }
    if (copied < 0) status = SystemError("copy", from + " to " + to, errno);
    if (copied <= 0) break;
    if (!buffer.empty()) status = WriteAll(target, to, ByteSpan(buffer).first(static_cast<size_t>(copied)));
  }
  close(source);
  if (close(target) != 0 && status) status = SystemError("close", to, errno);
  if (!status) unlink(to.c_str());
  return status;
}

Status FillHoles(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return SystemError("open", path, errno);
  struct stat info{};
  Status status;
  if (fstat(file, &info) != 0) status = SystemError("stat", path, errno);
  int result = 0;
  do {
    result = status && info.st_size > 0 ? fallocate(file, 0, 0, info.st_size) : 0;
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    status = SystemError("fill the holes of", path, errno);
  close(file);
  return status;
}

Status RemoveFileDurably(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return SystemError("remove", path, errno);
  return SyncFolderOf(path);
}

}  // namespace deltawire::pubsub
