// Owners of bytes: host allocations, mapped files, and handles to memory that the host can't read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace deltawire {

enum class DeviceKind : uint8_t {
  kHost,   // bytes are dereferenced on the host
  kTorch,  // a torch tensor on any device, reached through torch operations
};

// A contiguous range of bytes with one owner. Only the kernel table that belongs to `device()` may look
// inside; everything else passes handle() and offsets on.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual DeviceKind device() const = 0;
  virtual uint64_t size_bytes() const = 0;
  // Host: the address of byte 0. Other devices: an opaque value for their kernel table.
  virtual void* handle() const = 0;
  // The first failure of an operation on this memory since it was created, if its device can fail. Whoever
  // ran kernels on it asks before it believes their results.
  virtual Status Check() const { return {}; }
  // Zero-filled memory on the same device.
  virtual Result<std::shared_ptr<Memory>> AllocateLike(uint64_t size_bytes) const;
};

// Zero-filled anonymous host memory.
std::shared_ptr<Memory> AllocateHost(uint64_t size_bytes);

// Host bytes that somebody else owns and keeps alive and in place; `keep_alive` is held with them.
std::shared_ptr<Memory> BorrowHost(void* address, uint64_t size_bytes,
                                   std::shared_ptr<void> keep_alive = nullptr);

// A file mapped into memory. Writable mappings are shared with the file. The file must not shrink while it
// is mapped (the kernel answers with SIGBUS); callers that can't exclude that lock the folder.
Result<std::shared_ptr<Memory>> MapFile(const std::string& path, bool writable);
// Writes a writable mapping's dirty pages back and waits.
Status SyncMapping(const Memory& mapping);

}  // namespace deltawire
