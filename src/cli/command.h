// How the commands hang together: each file adds one subcommand, which leaves its action here when it was
// chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace deltawire::cli {

struct Session {
  Output out;
  // What stood behind "--": another program's command line.
  std::vector<std::string> trailing;
  // Of the chosen command. The exit code of what was checked, or why that could not be done.
  std::function<Result<ExitCode>()> action;
};

// A subcommand with help, examples (one a line) and --json. `run` is called after everything has been parsed.
CLI::App* AddCommand(CLI::App& app, Session& session, const std::string& name, const std::string& description,
                     const std::string& examples, std::function<Result<ExitCode>()> run);

void AddApply(CLI::App& app, Session& session);
void AddBench(CLI::App& app, Session& session);
void AddConvert(CLI::App& app, Session& session);
void AddDiff(CLI::App& app, Session& session);
void AddDoctor(CLI::App& app, Session& session);
void AddFold(CLI::App& app, Session& session);
void AddFollow(CLI::App& app, Session& session);
void AddInspect(CLI::App& app, Session& session);
void AddLog(CLI::App& app, Session& session);
void AddStress(CLI::App& app, Session& session);
void AddVerify(CLI::App& app, Session& session);

}  // namespace deltawire::cli
