// Blocks for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "base/rng.h"
#include "codec/codec.h"

namespace deltawire::codec {

struct TestBlock {
  uint32_t elements = 0;
  uint32_t width = 2;
  std::vector<uint32_t> changed;
  Bytes old_bits;
  Bytes new_bits;
  std::vector<uint32_t> uncertain;
  std::vector<uint16_t> uncertain_low;
  std::vector<uint8_t> uncertain_span;
  Bytes uncertain_new;

  BlockChanges View() const {
    return {elements,  width,         changed,        old_bits,     new_bits,
            uncertain, uncertain_low, uncertain_span, uncertain_new};
  }
  // What element i holds that is not listed.
  static uint64_t Filler(uint32_t i, uint32_t width);
  // The whole block after and before the changes; Uncertain
  // elements have the lower candidate (above 0) or the upper one as their base.
  Bytes NewBlock() const;
  Bytes OldBlock(uint16_t above) const;
};

enum class Steps {
  kUnit,   // +-1
  kSmall,  // mostly +-1, some larger, a few of any size
  kAny,    // uniform bits
};

// Each element is changed with probability `density` (1 or more: certainly) or uncertain with `uncertain`.
TestBlock RandomBlock(Rng& rng, uint32_t elements, uint32_t width, double density, double uncertain,
                      Steps steps);

struct Part {
  Bytes tables;
  std::vector<Bytes> streams;
  std::vector<std::vector<uint32_t>> populations;
};
Part EncodePart(Coding coding, std::span<const TestBlock> blocks);

// kClass: placed in the block's base.
Result<Decoded> Decode(const Decoder& decoder, Coding coding, const TestBlock& block, ByteSpan stream);
Result<Decoded> Decode(const Decoder& decoder, Coding coding, const TestBlock& block, ByteSpan stream,
                       ByteSpan old_block);

inline constexpr Coding kEveryCoding[] = {Coding::kAbsolute, Coding::kStep, Coding::kClass};

// Positions and, resolved against every base that the encoder allows, new bits.
void ExpectDecodes(Coding coding, const TestBlock& block, const Decoded& decoded);

}  // namespace deltawire::codec
