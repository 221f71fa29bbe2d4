// deltawire log URL: the versions of a run.
#include <set>

#include "base/clock.h"
#include "cli/command.h"
#include "cli/patch_options.h"

namespace deltawire::cli {
namespace {

std::string BaseText(const format::Manifest& manifest) {
  switch (manifest.base.kind) {
    case format::BaseRef::Kind::kVersion: return fmt::format("{}", manifest.base.number);
    case format::BaseRef::Kind::kCheckpoint: return "checkpoint";
    case format::BaseRef::Kind::kNone: break;
  }
  return "-";
}

std::string CodingsText(const format::Manifest& manifest) {
  std::string text;
  for (const auto& part : manifest.parts) {
    if (text.find(part.coding) != std::string::npos) continue;
    if (!text.empty()) text += '+';
    text += part.coding;
  }
  return text.empty() ? "-" : text;
}

uint64_t PartBytes(const format::Manifest& manifest) {
  uint64_t bytes = 0;
  for (const auto& part : manifest.parts) bytes += part.object.bytes;
  return bytes;
}

Result<ExitCode> Run(Session& session, const std::string& url, uint64_t last) {
  DELTAWIRE_ASSIGN(auto catalog, OpenCatalog(url));
  DELTAWIRE_ASSIGN(const std::string run, catalog.Run());
  DELTAWIRE_ASSIGN(auto numbers, catalog.Versions());
  DELTAWIRE_ASSIGN(const auto anchor_list, catalog.Anchors());
  const std::set<uint64_t> anchors(anchor_list.begin(), anchor_list.end());
  if (last > 0 && numbers.size() > last)
    numbers.erase(numbers.begin(), numbers.end() - static_cast<int64_t>(last));

  std::vector<std::vector<std::string>> rows = {{"version", "base", "steps", "changed", "share", "bytes",
                                                 "coding", "age", "anchor", "alias", "writer"}};
  for (const uint64_t number : numbers) {
    DELTAWIRE_ASSIGN(const auto record, catalog.Load(number));
    const format::Manifest& manifest = record.manifest;
    const double age = static_cast<double>(SystemClock().UnixNanos()) * 1e-9 -
                       static_cast<double>(manifest.created_unix_ns) * 1e-9;
    if (session.out.json) {
      session.out.JsonLine({{"number", number},
                            {"run", run},
                            {"base", BaseText(manifest)},
                            {"steps", manifest.steps},
                            {"changed", manifest.counts.changed},
                            {"uncertain", manifest.counts.uncertain},
                            {"dense", manifest.counts.dense},
                            {"sent", manifest.counts.sent},
                            {"total", manifest.counts.total},
                            {"changed_share", RatioJson(manifest.counts.changed, manifest.counts.total)},
                            {"bytes", PartBytes(manifest)},
                            {"coding", CodingsText(manifest)},
                            {"age_seconds", age},
                            {"created_unix_ns", manifest.created_unix_ns},
                            {"anchor", anchors.contains(number)},
                            {"alias_of", manifest.alias_of ? Json(*manifest.alias_of) : Json(nullptr)},
                            {"writer", manifest.writer},
                            {"digest", manifest.digest.Hex()}});
      continue;
    }
    rows.push_back({fmt::format("{}", number), BaseText(manifest), CountText(manifest.steps),
                    CountText(manifest.counts.changed),
                    ShareText(manifest.counts.changed, manifest.counts.total), BytesText(PartBytes(manifest)),
                    CodingsText(manifest), AgeText(age), anchors.contains(number) ? "yes" : "no",
                    manifest.alias_of ? fmt::format("{}", *manifest.alias_of) : "-", manifest.writer});
  }
  if (session.out.json) return kOk;
  session.out.Line(fmt::format("run {}", session.out.Strong(run)));
  session.out.Table(std::move(rows), "rrrrrrlrlll");
  return kOk;
}

struct Options {
  std::string url;
  uint64_t last = 0;
};

}  // namespace

void AddLog(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(app, session, "log", "List the versions of a run, newest last.",
                                 "  deltawire log /runs/7\n"
                                 "  deltawire log file:///runs/7 --last 5 --json\n",
                                 [&session, options] { return Run(session, options->url, options->last); });
  command->add_option("URL", options->url, "folder or URL of the run")->required();
  command->add_option("--last", options->last, "only the N newest; 0: all")->capture_default_str();
}

}  // namespace deltawire::cli
