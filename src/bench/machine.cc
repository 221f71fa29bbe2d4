#include "bench/machine.h"

#include <fmt/format.h>

#include <fstream>
#include <thread>

namespace deltawire::bench {
namespace {

// What stands behind the first "key...:" of a /proc file.
std::string ProcValue(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const auto value = line.find_first_not_of(" \t", line.find(':') + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

}  // namespace

std::string MachineText() {
  const std::string model = ProcValue("/proc/cpuinfo", "model name");
  const std::string memory = ProcValue("/proc/meminfo", "MemTotal");
  return fmt::format(
      "{}, {} cores, {:.1f} GiB", model.empty() ? "processor unknown" : model,
      std::thread::hardware_concurrency(),
      memory.empty() ? 0.0 : static_cast<double>(std::strtoull(memory.c_str(), nullptr, 10)) * 0x1p-20);
}

}  // namespace deltawire::bench
