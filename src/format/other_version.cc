#include "format/other_version.h"

#include <algorithm>
#include <string>

#include "format/text.h"

namespace deltawire::format {

Error OtherVersion(std::string_view what, std::string_view found, uint64_t known) {
  const bool number = !found.empty() && found.size() <= 20 &&
                      std::all_of(found.begin(), found.end(), [](char c) { return c >= '0' && c <= '9'; });
  // No release reads both, so a newer build would not help.
  const std::string_view remedy = found == "0"
                                      ? "version 0 is from before the formats were frozen: write it again, a "
                                        "run with a new Publisher in an empty place"
                                      : "use a build that knows it";
  return Error(Code::kUnsupported, fmt::format("{}: format version {}; this build reads version {}; {}", what,
                                               number ? std::string(found) : Quoted(found), known, remedy));
}

Error OtherVersion(std::string_view what, uint64_t found, uint64_t known) {
  return OtherVersion(what, std::to_string(found), known);
}

}  // namespace deltawire::format
