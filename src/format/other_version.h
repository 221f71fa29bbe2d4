// How every parser refuses a version of its format that it does not read.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace deltawire::format {

// kUnsupported: `what` (the object) has version `found`, this build reads `known`, and what to do. `found` is
// outside text and is quoted where it is not a number.
Error OtherVersion(std::string_view what, std::string_view found, uint64_t known);
Error OtherVersion(std::string_view what, uint64_t found, uint64_t known);

}  // namespace deltawire::format
