// Whether a part is the one that its manifest speaks of.
#pragma once

#include "base/status.h"
#include "format/manifest.h"
#include "format/update_file.h"

namespace deltawire::pubsub {

// kCorrupt, naming the first field that differs with both values: run, number, inventory, base, base digest,
// digest. The hashes say that the bytes are the ones published; this says that they were published as this
// version.
Status CheckPartHeader(const format::UpdateHeader& header, const format::Manifest& manifest);

}  // namespace deltawire::pubsub
