// New bits as byte planes for the entropy coder. Each value is first rotated left by one bit, so that its
// sign becomes the lowest bit and the exponent of BF16, FP32 and FP8 fills the top bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace deltawire::codec {

// Plane 0 holds the most significant bytes. planes: one vector for each byte of the width.
void SplitValues(ByteSpan values, uint32_t width, std::span<std::vector<uint8_t>> planes);
// planes: `width` arrays of values.size() / width bytes.
void JoinValues(std::span<const uint8_t* const> planes, uint32_t width, MutableByteSpan values);

}  // namespace deltawire::codec
