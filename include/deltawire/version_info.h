// What a publish or an update reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace deltawire {

// Counts are elements of the served tensors.
struct VersionInfo {
  uint64_t number = 0;
  std::optional<uint64_t> base;  // nullopt: starts from a checkpoint or from nothing
  std::string digest;            // state digest of the served bits, 32 hexadecimal digits
  uint64_t steps = 0;            // optimizer steps since the version before
  uint64_t changed = 0;          // known to differ from the base
  uint64_t uncertain = 0;        // sent because the base is not known exactly
  uint64_t sent = 0;             // all that were sent, blocks sent whole included
  uint64_t total = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  std::vector<std::string> notes;  // what was out of the ordinary, naming tensors
};

}  // namespace deltawire
