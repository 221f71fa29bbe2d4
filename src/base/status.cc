#include "base/status.h"

namespace deltawire {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kNotFound: return "not_found";
    case Code::kExists: return "exists";
    case Code::kUnsupported: return "unsupported";
    case Code::kIo: return "io";
    case Code::kNoSpace: return "no_space";
    case Code::kCancelled: return "cancelled";
    case Code::kCorrupt: return "corrupt";
    case Code::kWrongBase: return "wrong_base";
    case Code::kWrongRun: return "wrong_run";
    case Code::kMismatch: return "mismatch";
    case Code::kDetectorFault: return "detector_fault";
    case Code::kFenced: return "fenced";
    case Code::kUnusable: return "unusable";
    case Code::kInternal: return "internal";
  }
  return "internal";
}

}  // namespace deltawire
