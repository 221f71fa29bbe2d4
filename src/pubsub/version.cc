#include "pubsub/version.h"

namespace deltawire::pubsub {

Version VersionFromManifest(const format::Manifest& manifest) {
  Version version;
  version.number = manifest.number;
  if (manifest.base.kind == format::BaseRef::Kind::kVersion) version.base = manifest.base.number;
  version.digest = manifest.digest;
  version.steps = manifest.steps;
  version.changed = manifest.counts.changed;
  version.uncertain = manifest.counts.uncertain;
  version.dense = manifest.counts.dense;
  version.sent = manifest.counts.sent;
  version.total = manifest.counts.total;
  version.detectors = manifest.detectors;
  return version;
}

}  // namespace deltawire::pubsub
