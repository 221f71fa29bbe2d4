// What a publish or an update reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "format/manifest.h"
#include "tensor/digest.h"

namespace deltawire::pubsub {

struct Version {
  uint64_t number = 0;
  std::optional<uint64_t> base;  // nullopt: starts from a checkpoint or from nothing
  Digest digest;                 // state digest of the served bits
  uint64_t steps = 0;            // optimizer steps since the version before
  // Elements. changed: known to differ from the base. uncertain: sent because the base is not known exactly.
  // dense: in blocks sent whole. sent = changed + uncertain + dense. total: all served ones.
  uint64_t changed = 0;
  uint64_t uncertain = 0;
  uint64_t dense = 0;
  uint64_t sent = 0;
  uint64_t total = 0;
  uint64_t bytes = 0;  // of the update objects written (publisher; an anchor beside them not counted), or
                       // read (subscriber)
  double seconds = 0;  // wall time of the call
  std::vector<format::DetectorUse> detectors;
  // Wall seconds by stage, in order; they do not overlap.
  std::vector<std::pair<std::string, double>> stages;
  // What was out of the ordinary, one sentence each, naming tensors.
  std::vector<std::string> notes;
};

Version VersionFromManifest(const format::Manifest& manifest);

}  // namespace deltawire::pubsub
