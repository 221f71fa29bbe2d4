// deltawire_bench: prints every figure as a ratio to a floor measured in the same run.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>

#include "base/parallel.h"
#include "bench/machine.h"
#include "bench/report.h"
#include "bench/suites.h"

namespace deltawire::bench {
namespace {

constexpr uint64_t kQuickElements = 1 << 20;

Status WriteJson(const Report& report, const std::string& path) {
  std::ofstream file(path);
  file << report.Json().dump(2) << "\n" << std::flush;
  if (!file) return Fail(Code::kIo, "can't write {}", path);
  return {};
}

int Main(int argc, char** argv) {
  CLI::App app("Measure this machine: speeds as ratios to floors of the same run.", "deltawire_bench");
  app.footer("Examples:\n  deltawire bench core --json core.json\n  deltawire bench --threads 8");
  Settings settings;
  settings.threads = Parallel().threads();
  std::string suite;
  std::string json;
  app.add_option("SUITE", suite, "core, detect or wire; without it every suite runs")
      ->check(CLI::IsMember(SuiteNames()));
  app.add_option("--json", json, "write a list of {name, value, unit, floor, ratio} to this file");
  app.add_option("--only", settings.only, "one group of the suite")->check(CLI::IsMember(GroupNames()));
  app.add_flag("--quick", settings.quick, "small inputs, few rounds: whether it works, not how fast");
  app.add_option("--threads", settings.threads, "what the figures of all threads use")
      ->check(CLI::Range(1, 1024));
  app.add_option("--data", settings.data, "folder of real versions")->capture_default_str();
  app.add_option("--scratch", settings.scratch, "folder for stores and patches; a tmpfs")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (settings.quick) {
    settings.elements = kQuickElements;
    settings.rounds = 2;
  }

  Report report;
  const auto begin = [](std::string_view group) {
    std::fprintf(stderr, "measuring %.*s\n", static_cast<int>(group.size()), group.data());
  };
  Status status = RunSuite(suite, settings, report, begin);
  if (status) {
    std::printf("%s; all threads = %d; %llu elements\n%s%s", MachineText().c_str(), settings.threads,
                static_cast<unsigned long long>(settings.elements),
                settings.quick ? "quick: inputs fit the caches, so ratios to memory say nothing\n" : "",
                report.Table(!settings.quick).c_str());
    if (!json.empty()) status = WriteJson(report, json);
  }
  if (status) return 0;
  std::fprintf(stderr, "deltawire_bench: %s: %s\n", std::string(CodeName(status.error().code())).c_str(),
               status.error().message().c_str());
  return 1;
}

}  // namespace
}  // namespace deltawire::bench

int main(int argc, char** argv) {
  try {
    return deltawire::bench::Main(argc, argv);
  } catch (const std::exception& error) {  // no memory, or a bug
    std::fprintf(stderr, "deltawire_bench: %s\n", error.what());
    return 5;
  }
}
