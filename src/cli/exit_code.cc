#include "cli/exit_code.h"

namespace deltawire::cli {

ExitCode ExitCodeOf(Code code) {
  switch (code) {
    case Code::kDetectorFault:
    case Code::kUnusable: return kDiffers;
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kExists:
    case Code::kUnsupported:
    case Code::kCorrupt:
    case Code::kWrongBase:
    case Code::kWrongRun:
    case Code::kMismatch: return kBadInput;
    case Code::kIo:
    case Code::kNoSpace:
    case Code::kCancelled:
    case Code::kFenced: return kSystem;
    case Code::kInternal: return kOurBug;
  }
  return kOurBug;
}

std::string_view ExitCodeTable() {
  return "Exit codes:\n"
         "  0  done; everything that was checked holds\n"
         "  1  a checked thing is wrong: damaged, different, or not what it claims to be\n"
         "  2  usage: the command line\n"
         "  3  bad input: missing, corrupt, mismatching or foreign file, folder, version or name\n"
         "  4  the system: input or output, full disk, store, deadline\n"
         "  5  a bug in deltawire";
}

}  // namespace deltawire::cli
