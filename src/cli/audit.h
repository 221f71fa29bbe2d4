// doctor --audit: the user's own training loop, with the true weights kept beside the detector's answer.
#pragma once

#include <cstdint>
#include <string>

#include "cli/command.h"

namespace deltawire::cli {

// Runs session.trailing with DELTAWIRE_AUDIT_STEPS and DELTAWIRE_AUDIT_REPORT set; the Publisher in it
// compares `steps` optimizer steps and writes its findings as JSON to the report (a temporary file when
// report_path is empty). The first of these that holds: kDiffers, a change was missed or old bits were wrong;
// kSystem, the program failed, whatever it had found by then; kBadInput, there is nothing to judge by: no
// report, one that is none, or no element compared; kOk, all audited steps were sound.
Result<ExitCode> RunAudit(Session& session, uint64_t steps, const std::string& report_path);

}  // namespace deltawire::cli
