#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "bench/figures.h"
#include "codec/ordinal.h"
#include "pubsub/checkpoint.h"
#include "pubsub/patch_file.h"

namespace deltawire::bench {
namespace {

namespace fs = std::filesystem;

// Bytes a change without context, learning cost or framing: positions independent at each tensor's density,
// and the order-0 entropy of the ordinal steps of all tensors together.
Result<double> EntropyBytesPerChange(const pubsub::Checkpoint& old, const pubsub::Checkpoint& now) {
  double index_bits = 0;
  uint64_t changed = 0;
  std::map<int, uint64_t> steps;
  for (const auto& [name, view] : now.tensors()) {
    const TensorView* before = old.Find(name);
    if (before == nullptr || view.dtype != Dtype::kBf16 || before->shape != view.shape) {
      return Fail(Code::kMismatch, "tensor {}: expected BF16 of the same shape in both versions", name);
    }
    const auto* a = static_cast<const uint8_t*>(before->memory->handle()) + before->offset_bytes;
    const auto* b = static_cast<const uint8_t*>(view.memory->handle()) + view.offset_bytes;
    const uint64_t count = *ElementCount(view.shape);
    uint64_t differ = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const auto was = static_cast<int16_t>(codec::Ordinal(LoadLe<uint16_t>(a + 2 * i)));
      const auto is = static_cast<int16_t>(codec::Ordinal(LoadLe<uint16_t>(b + 2 * i)));
      const int step = is - was;
      if (step == 0) continue;
      ++differ;
      ++steps[step];
    }
    changed += differ;
    const double p = static_cast<double>(differ) / static_cast<double>(count);
    if (differ != 0 && differ != count) {
      index_bits -= static_cast<double>(count) * (p * std::log2(p) + (1 - p) * std::log2(1 - p));
    }
  }
  double step_bits = 0;
  for (const auto& [step, count] : steps) {
    step_bits -=
        static_cast<double>(count) * std::log2(static_cast<double>(count) / static_cast<double>(changed));
  }
  return (index_bits + step_bits) / 8 / static_cast<double>(changed);
}

}  // namespace

Status AddCodecFigures(const Settings& settings, Report& report) {
  const std::string name = "codec.bytes_per_changed";
  const std::string old_path = settings.data + "/steady/v0011.safetensors";
  const std::string new_path = settings.data + "/steady/v0012.safetensors";
  if (!fs::exists(old_path) || !fs::exists(new_path)) {
    report.AddMissing(
        name, fmt::format("{} or {} does not exist; name the folder with --data", old_path, new_path));
    return {};
  }
  const std::string out = fmt::format("{}/deltawire-bench-{}.safetensors", settings.scratch, getpid());
  pubsub::PatchOptions options;
  options.parallel = Parallel(settings.threads);
  const auto version = pubsub::DiffCheckpoints(old_path, new_path, out, options);
  std::error_code error;
  const uint64_t bytes = version ? fs::file_size(out, error) : 0;
  fs::remove(out, error);
  if (!version) return Fail(version.error());

  DELTAWIRE_ASSIGN(const auto old, pubsub::Checkpoint::Open(old_path));
  DELTAWIRE_ASSIGN(const auto now, pubsub::Checkpoint::Open(new_path));
  DELTAWIRE_ASSIGN(const double entropy, EntropyBytesPerChange(old, now));
  report.Add(
      {.name = name,
       .value = static_cast<double>(bytes) / static_cast<double>(version->changed),
       .unit = "B/change",
       .floor = entropy,
       .max_value = 1.70,
       .note = fmt::format("{} B, {} of {} elements; floor: entropy of independent positions and steps",
                           bytes, version->changed, version->total)});
  return {};
}

}  // namespace deltawire::bench
