// Named lists of groups of figures.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bench/report.h"
#include "bench/settings.h"

namespace deltawire::bench {

std::vector<std::string> SuiteNames();
std::vector<std::string> GroupNames();

// The groups of a suite in order, or settings.only; all suites if `suite` is empty, each group once. begin is
// told the name of each group before it. kInvalidArgument if settings.only is not in the suite.
Status RunSuite(std::string_view suite, const Settings& settings, Report& report,
                const std::function<void(std::string_view)>& begin);

}  // namespace deltawire::bench
