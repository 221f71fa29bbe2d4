// The `deltawire` command: reads the command line, runs one command, tells the shell.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#include "cli/command.h"

namespace {

using namespace deltawire;
using namespace deltawire::cli;

// A mapped checkpoint that somebody truncates is answered with SIGBUS, outside of any error path.
void MappedFileShrank(int) {
  constexpr char kMessage[] =
      "deltawire: io: a file became shorter while it was being read; nothing was written\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(kSystem);
}

void SetUpProcess() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // A reader that went away ends us quietly, whatever the parent set; a file-size limit is an error like a
  // full disk.
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGBUS, MappedFileShrank);
}

int Finish(Session& session, int code) {
  if (const Status flushed = session.out.Flush(); !flushed && code == kOk) {
    session.out.Warning(CodeName(flushed.error().code()), flushed.error().message());
    return kSystem;
  }
  return code;
}

int UsageError(Session& session, const CLI::App& app, const std::string& message) {
  const auto chosen = app.get_subcommands();
  session.out.Error("usage", fmt::format("{}; see deltawire {}--help", message,
                                         chosen.empty() ? "" : chosen.front()->get_name() + " "));
  return kUsage;
}

// doctor takes another program's command line behind "--"; elsewhere "--" only ends the options.
void SplitTrailing(std::vector<std::string>& arguments, Session& session) {
  if (arguments.empty() || arguments[0] != "doctor") return;
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  if (dashes == arguments.end()) return;
  session.trailing.assign(dashes + 1, arguments.end());
  arguments.erase(dashes, arguments.end());
}

int Run(int argc, char** argv) {
  Session session;
  CLI::App app(
      "deltawire keeps LLM rollout engines bit-identical to their RL trainer by sending only the weights "
      "that "
      "changed.",
      "deltawire");
  app.set_version_flag("--version", "deltawire " DELTAWIRE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  deltawire diff old/ new/ -o p.safetensors      what changed between two checkpoints\n"
      "  deltawire apply old/ p.safetensors -o rebuilt/\n"
      "  deltawire follow /runs/7 engine/ckpt           keep a checkpoint at a run's newest version\n"
      "\n" +
      std::string(ExitCodeTable()) +
      "\nErrors are one line on stderr, \"deltawire: CODE: message\"; with --json also on stdout.");
  AddDiff(app, session);
  AddApply(app, session);
  AddVerify(app, session);
  AddConvert(app, session);
  AddFold(app, session);
  AddInspect(app, session);
  AddLog(app, session);
  AddFollow(app, session);
  AddDoctor(app, session);
  AddBench(app, session);
  AddStress(app, session);

  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  SplitTrailing(arguments, session);
  // Also for errors that parsing ends with before it comes to the flag. bench's and stress's --json name a
  // file.
  const std::string command = arguments.empty() ? "" : arguments[0];
  session.out.json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end() &&
                     command != "bench" && command != "stress";
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::Success& success) {  // --help, --version
    return Finish(session, app.exit(success));
  } catch (const CLI::ParseError& error) {
    const bool unknown = app.get_subcommands().empty() && !command.empty() && !command.starts_with('-');
    return Finish(session, UsageError(session, app,
                                      unknown ? fmt::format("{} is not a command", command) : error.what()));
  }
  const Result<ExitCode> result = session.action();
  if (result) return Finish(session, *result);
  session.out.Error(result.error());
  return Finish(session, ExitCodeOf(result.error().code()));
}

}  // namespace

int main(int argc, char** argv) {
  SetUpProcess();
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {  // memory, or a bug
    std::fprintf(stderr, "deltawire: internal: %s\n", error.what());
    return kOurBug;
  }
}
