// What the shell is told. The table is part of the command's documented surface: `deltawire --help`.
#pragma once

#include <string_view>

#include "base/status.h"

namespace deltawire::cli {

enum ExitCode : int {
  kOk = 0,
  kDiffers = 1,   // a checked thing is wrong
  kUsage = 2,     // the command line
  kBadInput = 3,  // a file, folder, version or name that was given
  kSystem = 4,    // the operating system, the disk or the store
  kOurBug = 5,
};

ExitCode ExitCodeOf(Code code);
// For help texts.
std::string_view ExitCodeTable();

}  // namespace deltawire::cli
