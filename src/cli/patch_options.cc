#include "cli/patch_options.h"

#include <filesystem>

#include "store/open.h"

namespace deltawire::cli {

std::shared_ptr<int> AddThreads(CLI::App* command) {
  auto threads = std::make_shared<int>(0);
  command->add_option("--threads", *threads, "threads to use; 0: one for each processor")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  return threads;
}

pubsub::PatchOptions MakePatchOptions(Output& out, int threads, const std::string& label) {
  pubsub::PatchOptions options;
  options.parallel = Parallel(threads);
  options.progress = out.Progress(label);
  return options;
}

void NewPatch::AddTo(CLI::App* command) {
  command->add_option("-o,--output", path, "the patch to write, a safetensors file")->required();
  command->add_flag("--force", force, "replace an existing output file");
  threads = AddThreads(command);
}

Status NewPatch::Check() const {
  std::error_code error;
  if (force || !std::filesystem::exists(path, error)) return {};
  return Fail(Code::kExists, "{} exists already; remove it, choose another name, or give --force", path);
}

std::string PatchBytesText(const pubsub::Version& version) {
  return fmt::format("{} ({} a changed element)", CountText(version.bytes),
                     BytesPerChangeText(version.bytes, version.changed));
}

Result<sync::Catalog> OpenCatalog(const std::string& url) {
  DELTAWIRE_ASSIGN(auto store, OpenStore(url, false));
  return sync::Catalog(std::move(store));
}

Json VersionJson(const pubsub::Version& version) {
  Json json = {{"number", version.number},       {"base", version.base ? Json(*version.base) : Json(nullptr)},
               {"digest", version.digest.Hex()}, {"steps", version.steps},
               {"changed", version.changed},     {"uncertain", version.uncertain},
               {"dense", version.dense},         {"sent", version.sent},
               {"total", version.total},         {"bytes", version.bytes},
               {"seconds", version.seconds}};
  for (const auto& [stage, seconds] : version.stages) json["stages"][stage] = seconds;
  if (!version.notes.empty()) json["notes"] = version.notes;
  return json;
}

std::string ChangedText(uint64_t changed, uint64_t total) {
  return fmt::format("{} of {} ({})", CountText(changed), CountText(total), ShareText(changed, total));
}

}  // namespace deltawire::cli
