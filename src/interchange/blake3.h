// BLAKE3 in its default mode (32-byte hash), after the specification: github.com/BLAKE3-team/BLAKE3-specs.
// Debian 12 has no library of it. Portable code: about a sixth of the speed of a vectorised one.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"

namespace deltawire::interchange {

std::array<uint8_t, 32> Blake3(ByteSpan bytes);

}  // namespace deltawire::interchange
