// Codings as manifests and users spell them.
#pragma once

#include <string_view>

#include "base/status.h"
#include "codec/codec.h"

namespace deltawire::pubsub {

// "dense", "absolute", "step", "class", "open".
std::string_view CodingName(codec::Coding coding);
// kInvalidArgument, listing the names, for any other text and for "dense" (chosen per block, not asked for).
Result<codec::Coding> CodingFromName(std::string_view name);

}  // namespace deltawire::pubsub
