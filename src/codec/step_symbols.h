// Positions and steps as symbols for the entropy coder and raw bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "codec/bit_stream.h"
#include "codec/bucket.h"
#include "kernels/symbol_groups.h"

namespace deltawire::codec {

// A changed element: kind * kGapBuckets + bucket of the gap. Positions alone have kind 0.
enum StepKind : unsigned { kUp = 0, kDown = 1, kEscape = 2 };
inline constexpr unsigned kStepSymbols = 3 * kGapBuckets;
// An uncertain element: kGapBuckets more when its bits follow instead of a residue.
inline constexpr unsigned kUncertainSymbols = 2 * kGapBuckets;

// The gap of a position is its distance from the one before it, less one (the first: the position itself).

void SplitPositions(std::span<const uint32_t> positions, std::vector<uint8_t>& symbols, BitWriter& bits);
// steps: width bytes each. symbols has room for all; escapes are appended. The bits of the escapes (sign, low
// bits of the magnitude) follow those of all gaps.
void SplitSteps(std::span<const uint32_t> positions, ByteSpan steps, uint32_t width,
                std::span<uint8_t> symbols, std::vector<uint8_t>& escapes, BitWriter& bits,
                const kernels::SymbolGroups& groups = kernels::CpuSymbolGroups());
// residues: 0 ... 3, or 0xFF where the element's width bytes of new_bits count.
void SplitUncertain(std::span<const uint32_t> positions, std::span<const uint8_t> residues, ByteSpan new_bits,
                    uint32_t width, std::vector<uint8_t>& symbols, BitWriter& bits);

// The inverses. Outputs have room for as many elements as there are symbols, which are in range; escapes: one
// symbol for each kEscape, < kMagnitudeBuckets. False when a position is not below `elements`, or an escape
// is a step of +-1 or beyond the width (those have one spelling only). A lack of bits shows in the reader.
bool JoinPositions(std::span<const uint8_t> symbols, uint32_t elements, BitReader& bits,
                   std::span<uint32_t> positions);
bool JoinSteps(std::span<const uint8_t> symbols, std::span<const uint8_t> escapes, uint32_t elements,
               uint32_t width, BitReader& bits, std::span<uint32_t> positions, MutableByteSpan steps,
               const kernels::SymbolGroups& groups = kernels::CpuSymbolGroups());
bool JoinUncertain(std::span<const uint8_t> symbols, uint32_t elements, uint32_t width, BitReader& bits,
                   std::span<uint32_t> positions, std::span<uint8_t> residues, MutableByteSpan new_bits);

}  // namespace deltawire::codec
