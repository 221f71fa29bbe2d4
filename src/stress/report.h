// A run as JSON: what is reported, and where a run that was killed goes on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/bytes.h"
#include "base/status.h"
#include "stress/run.h"

namespace deltawire::stress {

// {"format", "format_version", "plan_version", "complete", "seed", "first_batch", "next_batch", "elements",
// counts and shares as in Tally, "seconds", "elements_per_second", "first_failure": {"what", "batch", "case":
// [[name, value], ...]} or null, "by": {dimension: {value: counts}}}. complete: nothing is left of what was
// asked for.
nlohmann::ordered_json ReportJson(const Progress& progress, bool complete);

// The inverse. kCorrupt for anything else; kMismatch when batch numbers meant something else then.
Result<Progress> ProgressFromJson(ByteSpan text);

}  // namespace deltawire::stress
