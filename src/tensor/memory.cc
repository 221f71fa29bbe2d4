#include "tensor/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace deltawire {
namespace {

class BorrowedMemory final : public Memory {
 public:
  BorrowedMemory(void* address, uint64_t size, std::shared_ptr<void> keep_alive)
      : address_(address), size_(size), keep_alive_(std::move(keep_alive)) {}
  DeviceKind device() const override { return DeviceKind::kHost; }
  uint64_t size_bytes() const override { return size_; }
  void* handle() const override { return address_; }

 private:
  void* address_;
  uint64_t size_;
  std::shared_ptr<void> keep_alive_;
};

class MappedMemory final : public Memory {
 public:
  MappedMemory(void* address, uint64_t size) : address_(address), size_(size) {}
  ~MappedMemory() override {
    if (size_ > 0) munmap(address_, size_);
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  DeviceKind device() const override { return DeviceKind::kHost; }
  uint64_t size_bytes() const override { return size_; }
  void* handle() const override { return address_; }

 private:
  void* address_;
  uint64_t size_;
};

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<std::shared_ptr<Memory>> Memory::AllocateLike(uint64_t size_bytes) const {
  return AllocateHost(size_bytes);
}

std::shared_ptr<Memory> AllocateHost(uint64_t size_bytes) {
  if (size_bytes == 0) return std::make_shared<BorrowedMemory>(nullptr, 0, nullptr);
  void* address = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();  // as any other failed allocation
  return std::make_shared<MappedMemory>(address, size_bytes);
}

std::shared_ptr<Memory> BorrowHost(void* address, uint64_t size_bytes, std::shared_ptr<void> keep_alive) {
  return std::make_shared<BorrowedMemory>(address, size_bytes, std::move(keep_alive));
}

Result<std::shared_ptr<Memory>> MapFile(const std::string& path, bool writable) {
  const FileDescriptor file(open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  if (file.get() < 0) {
    return Fail(errno == ENOENT ? Code::kNotFound : Code::kIo, "can't open {}: {}", path,
                std::strerror(errno));
  }
  struct stat info{};
  if (fstat(file.get(), &info) != 0) {
    return Fail(Code::kIo, "can't stat {}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return Fail(Code::kInvalidArgument, "{} is not a regular file", path);
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size == 0) return BorrowHost(nullptr, 0);
  void* address =
      mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) {
    return Fail(Code::kIo, "can't map {} ({} bytes): {}", path, size, std::strerror(errno));
  }
  return std::make_shared<MappedMemory>(address, size);
}

Status SyncMapping(const Memory& mapping) {
  if (mapping.size_bytes() == 0) return {};
  if (msync(mapping.handle(), mapping.size_bytes(), MS_SYNC) != 0) {
    return Fail(Code::kIo, "can't write a mapped file back: {}", std::strerror(errno));
  }
  return {};
}

}  // namespace deltawire
