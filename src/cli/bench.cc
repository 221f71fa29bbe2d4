// deltawire bench: hands over to deltawire_bench, which is installed beside this program.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/command.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

Result<ExitCode> Run(const CLI::App& command) {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  // Installed, and in a build tree.
  for (const fs::path& program :
       {here / "deltawire_bench", here.parent_path() / "bench" / "deltawire_bench"}) {
    if (!fs::exists(program, error)) continue;
    std::vector<std::string> arguments = command.remaining();
    arguments.insert(arguments.begin(), program.string());
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    return Fail(Code::kIo, "can't run {}: {}", program.string(), std::strerror(errno));
  }
  return Fail(
      Code::kNotFound,
      "deltawire_bench is not beside {}; build deltawire with -DDELTAWIRE_BENCH=ON, or use ./dev bench",
      here.string());
}

}  // namespace

void AddBench(CLI::App& app, Session& session) {
  CLI::App* command =
      app.add_subcommand("bench", "Measure this machine: speeds as ratios to floors of the same run.");
  command->footer(
      "Arguments go to deltawire_bench as they are.\n"
      "Examples:\n"
      "  deltawire bench core --json core.json\n"
      "  deltawire bench\n" +
      std::string(ExitCodeTable()));
  command->prefix_command();
  command->callback([&session, command] { session.action = [command] { return Run(*command); }; });
}

}  // namespace deltawire::cli
