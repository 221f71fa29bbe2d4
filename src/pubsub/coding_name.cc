#include "pubsub/coding_name.h"

namespace deltawire::pubsub {

std::string_view CodingName(codec::Coding coding) {
  switch (coding) {
    case codec::Coding::kDense: return "dense";
    case codec::Coding::kAbsolute: return "absolute";
    case codec::Coding::kStep: return "step";
    case codec::Coding::kClass: return "class";
  }
  return "";
}

Result<codec::Coding> CodingFromName(std::string_view name) {
  for (const auto coding : {codec::Coding::kAbsolute, codec::Coding::kStep, codec::Coding::kClass}) {
    if (CodingName(coding) == name) return coding;
  }
  return Fail(Code::kInvalidArgument, "unknown coding \"{}\"; choose \"class\", \"step\" or \"absolute\"",
              name);
}

}  // namespace deltawire::pubsub
