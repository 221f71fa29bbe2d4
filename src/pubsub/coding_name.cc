#include "pubsub/coding_name.h"

namespace deltawire::pubsub {

std::string_view CodingName(codec::Coding coding) {
  switch (coding) {
    case codec::Coding::kDense: return "dense";
    case codec::Coding::kAbsolute: return "absolute";
    case codec::Coding::kStep: return "step";
    case codec::Coding::kClass: return "class";
    case codec::Coding::kOpen: return "open";
  }
  return "";
}

Result<codec::Coding> CodingFromName(std::string_view name) {
  using codec::Coding;
  for (const auto coding : {Coding::kAbsolute, Coding::kStep, Coding::kClass, Coding::kOpen}) {
    if (CodingName(coding) == name) return coding;
  }
  return Fail(Code::kInvalidArgument,
              "unknown coding \"{}\"; choose \"class\", \"step\", \"absolute\" or \"open\"", name);
}

}  // namespace deltawire::pubsub
