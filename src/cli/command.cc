#include "cli/command.h"

namespace deltawire::cli {

CLI::App* AddCommand(CLI::App& app, Session& session, const std::string& name, const std::string& description,
                     const std::string& examples, std::function<Result<ExitCode>()> run) {
  CLI::App* command = app.add_subcommand(name, description);
  command->footer("Examples:\n" + examples + "\n" + std::string(ExitCodeTable()));
  command->add_flag("--json", session.out.json, "machine-readable output: one JSON value a line");
  command->callback([&session, run = std::move(run)] { session.action = run; });
  return command;
}

}  // namespace deltawire::cli
