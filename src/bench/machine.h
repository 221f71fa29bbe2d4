// Where a report was made.
#pragma once

#include <string>

namespace deltawire::bench {

// "AMD EPYC, 2 cores, 23.5 GiB": what /proc says.
std::string MachineText();

}  // namespace deltawire::bench
