#include "bench/memory_peak.h"

#include <malloc.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace deltawire::bench {
namespace {

Result<uint64_t> StatusBytes(std::string_view key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  }
  return Fail(Code::kUnsupported, "/proc/self/status has no {}; peak memory needs Linux's /proc", key);
}

}  // namespace

Result<MemoryPeak> MemoryPeak::Begin() {
  malloc_trim(0);
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;
  if (!clear) return Fail(Code::kUnsupported, "/proc/self/clear_refs can't be written; peak memory needs it");
  DELTAWIRE_ASSIGN(const uint64_t resident, StatusBytes("VmRSS"));
  return MemoryPeak(resident);
}

Result<uint64_t> MemoryPeak::GrowthBytes() const {
  DELTAWIRE_ASSIGN(const uint64_t peak, StatusBytes("VmHWM"));
  return peak > resident_bytes_ ? peak - resident_bytes_ : 0;
}

}  // namespace deltawire::bench
