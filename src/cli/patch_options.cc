#include "cli/patch_options.h"

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
