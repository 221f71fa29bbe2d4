#include "cli/environment.h"

#include <dlfcn.h>

#include <fstream>
#include <sstream>

#include "base/parallel.h"
#include "cli/child.h"
#include "format/json.h"
#include "kernels/kernels.h"

namespace deltawire::cli {
namespace {

constexpr int64_t kPatienceMs = 20'000;

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// Bytes of a "Name:   123 kB" line of /proc/meminfo; 0 when there is none.
uint64_t MeminfoBytes(const std::string& text, const std::string& name) {
  const size_t at = text.find(name + ":");
  if (at == std::string::npos) return 0;
  std::istringstream line(text.substr(at + name.size() + 1));
  uint64_t kilobytes = 0;
  line >> kilobytes;
  return kilobytes * 1024;
}

struct Driver {
  int devices = 0;
  int version = 0;
  std::string name;
  uint64_t memory = 0;
  std::string missing;  // why there is no GPU to use
};

// The driver is asked directly: it is the one thing that must work, and it is loaded at run time only.
Driver AskDriver() {
  Driver driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    driver.missing = "no CUDA driver on this machine (libcuda.so.1 can't be loaded)";
    return driver;
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto version = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
  const auto name = reinterpret_cast<int (*)(char*, int, int)>(dlsym(library, "cuDeviceGetName"));
  const auto memory = reinterpret_cast<int (*)(size_t*, int)>(dlsym(library, "cuDeviceTotalMem_v2"));
  if (!init || !version || !count || !name || !memory) {
    driver.missing = "the CUDA driver lacks functions of CUDA 3.2";
    return driver;
  }
  if (const int error = init(0); error != 0) {
    driver.missing = fmt::format("the CUDA driver is there, but cuInit gives error {}", error);
    return driver;
  }
  version(&driver.version);
  if (count(&driver.devices) != 0 || driver.devices == 0) {
    driver.missing = "the CUDA driver sees no device";
    return driver;
  }
  char text[256] = "";
  size_t bytes = 0;
  if (name(text, sizeof(text) - 1, 0) == 0) driver.name = text;
  if (memory(&bytes, 0) == 0) driver.memory = bytes;
  return driver;
}

}  // namespace

Fact ProcessorFact() {
  const char* target = kernels::CpuTable().name;
  const int threads = Parallel().threads();
  return {"processor",
          true,
          fmt::format("kernels {}, {} threads", target, threads),
          {{"kernels", target}, {"threads", threads}}};
}

Fact MemoryFact() {
  std::ifstream file("/proc/meminfo");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const uint64_t total = MeminfoBytes(text, "MemTotal");
  const uint64_t available = MeminfoBytes(text, "MemAvailable");
  if (total == 0) return {"memory", false, "/proc/meminfo can't be read", nullptr};
  return {"memory",
          true,
          fmt::format("{} of {} available", BytesText(available), BytesText(total)),
          {{"total_bytes", total}, {"available_bytes", available}}};
}

Fact CudaCompilerFact() {
  const auto answer = Ask({"nvcc", "--version"}, kPatienceMs);
  if (!answer) return {"nvcc", false, answer.error().message(), nullptr};
  const size_t at = answer->output.find("release ");
  if (answer->exit_code != 0 || at == std::string::npos) {
    return {"nvcc", false, fmt::format("nvcc --version ended with {}", answer->exit_code), nullptr};
  }
  const std::string version = FirstLine(answer->output.substr(at));
  return {"nvcc", true, version, {{"version", version}}};
}

Fact GpuFact() {
  const Driver driver = AskDriver();
  if (!driver.missing.empty()) return {"gpu", false, driver.missing, nullptr};
  return {"gpu",
          true,
          fmt::format("{} x {} ({}), driver for CUDA {}.{}", driver.devices, driver.name,
                      BytesText(driver.memory), driver.version / 1000, driver.version % 1000 / 10),
          {{"devices", driver.devices},
           {"name", driver.name},
           {"memory_bytes", driver.memory},
           {"driver_version", driver.version}}};
}

Fact PythonFact() {
  // Looked up, not imported: importing torch may take a minute.
  static constexpr const char* kProgram =
      "import importlib.metadata, importlib.util, json, platform, sys\n"
      "found = {'executable': sys.executable, 'version': platform.python_version()}\n"
      "for name in ('torch', 'safetensors', 'deltawire'):\n"
      "    found[name] = None\n"
      "    if importlib.util.find_spec(name) is not None:\n"
      "        try:\n"
      "            found[name] = importlib.metadata.version(name)\n"
      "        except importlib.metadata.PackageNotFoundError:\n"
      "            found[name] = 'on the path, not installed'\n"
      "print(json.dumps(found))\n";
  const auto answer = Ask({"python3", "-c", kProgram}, kPatienceMs);
  if (!answer) return {"python", false, answer.error().message(), nullptr};
  const auto parsed = format::ParseJson(AsBytes(answer->output), {.max_bytes = 1 << 20}, "python3's answer");
  if (answer->exit_code != 0 || !parsed || !parsed->is_object()) {
    return {"python", false, fmt::format("python3 ended with {}", answer->exit_code), nullptr};
  }
  std::string detail =
      fmt::format("{} at {}", parsed->value("version", "?"), parsed->value("executable", "?"));
  for (const char* name : {"torch", "safetensors", "deltawire"}) {
    const auto& value = (*parsed)[name];
    detail += value.is_string() ? fmt::format(", {} {}", name, value.get<std::string>())
                                : fmt::format(", no {}", name);
  }
  return {"python", true, detail, Json::parse(answer->output)};
}

}  // namespace deltawire::cli
