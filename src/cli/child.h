// Other programs: asked for a few lines, or given the terminal.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace deltawire::cli {

struct ChildResult {
  int exit_code = 0;  // 128 + signal where one ended it
  std::string output;
};

// Runs a program (looked up in PATH) with its stdout captured and its stderr dropped. kNotFound when there is
// none, kCancelled when it takes longer than timeout_ms: it and its children are killed then.
Result<ChildResult> Ask(const std::vector<std::string>& command, int64_t timeout_ms);

// Runs a program with our terminal and the given variables added to its environment, and waits. Ctrl-C is the
// program's to handle.
Result<int> RunForeground(const std::vector<std::string>& command,
                          const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace deltawire::cli
