#include "bench/suites.h"

#include <algorithm>
#include <set>

#include "bench/figures.h"

namespace deltawire::bench {
namespace {

struct Group {
  std::string_view name;
  Status (*add)(const Settings&, Report&);
};
struct Suite {
  std::string_view name;
  std::vector<Group> groups;
};

const std::vector<Suite>& Suites() {
  static const std::vector<Suite> suites = {
      {"core",
       {{"detect", AddDetectFigures},
        {"delta", AddDeltaFigures},
        {"codec", AddCodecFigures},
        {"e2e", AddEndToEndFigures}}},
      {"detect",
       {{"detect", AddDetectFigures},
        {"inversion", AddInversionFigures},
        {"capture", AddCaptureFigures},
        {"memory", AddDetectMemoryFigures}}},
      {"wire", {{"speed", AddWireFigures}, {"peers", AddPeerFigures}, {"sweep", AddSweepFigures}}},
  };
  return suites;
}

}  // namespace

std::vector<std::string> SuiteNames() {
  std::vector<std::string> names;
  for (const Suite& suite : Suites()) names.emplace_back(suite.name);
  return names;
}

std::vector<std::string> GroupNames() {
  std::set<std::string> names;
  for (const Suite& suite : Suites()) {
    for (const Group& group : suite.groups) names.emplace(group.name);
  }
  return {names.begin(), names.end()};
}

Status RunSuite(std::string_view suite_name, const Settings& settings, Report& report,
                const std::function<void(std::string_view)>& begin) {
  std::set<std::string_view> done;
  for (const Suite& suite : Suites()) {
    if (!suite_name.empty() && suite_name != suite.name) continue;
    for (const Group& group : suite.groups) {
      if (!settings.only.empty() && settings.only != group.name) continue;
      if (!done.insert(group.name).second) continue;
      begin(group.name);
      DELTAWIRE_TRY(group.add(settings, report));
    }
  }
  if (done.empty()) {
    return Fail(Code::kInvalidArgument, "suite {} has no group {}", suite_name, settings.only);
  }
  return {};
}

}  // namespace deltawire::bench
