#include "cli/child.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"

namespace deltawire::cli {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Owns the two plain structs that posix_spawn wants.
class SpawnSettings {
 public:
  SpawnSettings() {
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
    // What this command ignores or blocks is not the child's business.
    sigset_t defaults;
    sigemptyset(&defaults);
    for (const int number : {SIGXFSZ, SIGPIPE, SIGINT}) sigaddset(&defaults, number);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    flags = POSIX_SPAWN_SETSIGDEF;
  }
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
  short flags;
};

Result<pid_t> Spawn(std::vector<std::string> command, std::vector<std::string> environment,
                    SpawnSettings& settings) {
  posix_spawnattr_setflags(&settings.attributes, settings.flags);
  const auto argv = Pointers(command);
  const auto envp = Pointers(environment);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, argv[0], &settings.actions, &settings.attributes, argv.data(), envp.data());
  if (error == 0) return child;
  return Fail(error == ENOENT ? Code::kNotFound : Code::kIo, "can't run {}: {}", command[0],
              std::strerror(error));
}

std::vector<std::string> Environment() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return environment;
}

int Wait(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Result<ChildResult> Ask(const std::vector<std::string>& command, int64_t timeout_ms) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Fail(Code::kIo, "can't make a pipe: {}", std::strerror(errno));
  SpawnSettings settings;
  posix_spawn_file_actions_addopen(&settings.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&settings.actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&settings.actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_setpgroup(&settings.attributes, 0);
  settings.flags |= POSIX_SPAWN_SETPGROUP;
  const auto child = Spawn(command, Environment(), settings);
  close(ends[1]);
  if (!child) {
    close(ends[0]);
    return Fail(child.error());
  }
  ChildResult result;
  const int64_t deadline = SystemClock().MonotonicNanos() + timeout_ms * 1'000'000;
  bool ended = false;
  while (!ended) {
    const int64_t left = (deadline - SystemClock().MonotonicNanos()) / 1'000'000;
    pollfd waiting{ends[0], POLLIN, 0};
    const int ready = left > 0 ? poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    char buffer[4096];
    const ssize_t count = read(ends[0], buffer, sizeof(buffer));
    if (count > 0) result.output.append(buffer, static_cast<size_t>(count));
    ended = count == 0 || (count < 0 && errno != EINTR);
  }
  close(ends[0]);
  if (!ended) kill(-*child, SIGKILL);
  result.exit_code = Wait(*child);
  if (!ended) return Fail(Code::kCancelled, "{} did not end within {} ms", command[0], timeout_ms);
  return result;
}

Result<int> RunForeground(const std::vector<std::string>& command,
                          const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> environment = Environment();
  for (const auto& [name, value] : variables) {
    std::erase_if(environment, [&, prefix = fmt::format("{}=", name)](const std::string& entry) {
      return entry.starts_with(prefix);
    });
    environment.push_back(fmt::format("{}={}", name, value));
  }
  SpawnSettings settings;
  const auto interrupted = std::signal(SIGINT, SIG_IGN);
  const auto child = Spawn(command, std::move(environment), settings);
  const Result<int> code = child.map(Wait);
  std::signal(SIGINT, interrupted);
  return code;
}

}  // namespace deltawire::cli
