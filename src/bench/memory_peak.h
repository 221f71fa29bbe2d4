// The process's peak resident memory over a stretch of code.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace deltawire::bench {

// Begin gives freed memory back and restarts the kernel's high-water mark (/proc/self/clear_refs); growth is
// what the mark rose above the resident size at Begin. kUnsupported where /proc does not offer it.
class MemoryPeak {
 public:
  static Result<MemoryPeak> Begin();
  Result<uint64_t> GrowthBytes() const;
  uint64_t resident_bytes() const { return resident_bytes_; }

 private:
  explicit MemoryPeak(uint64_t resident_bytes) : resident_bytes_(resident_bytes) {}
  uint64_t resident_bytes_;
};

}  // namespace deltawire::bench
