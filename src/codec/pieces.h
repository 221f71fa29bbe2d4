// A block cut into what its coded stream consists of: symbols for the entropy coder, raw bits, and the lists'
// sizes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "codec/bit_stream.h"
#include "codec/codec.h"

namespace deltawire::codec {

inline constexpr uint32_t kMaxWidth = 8;

struct Pieces {
  uint32_t elements = 0;
  uint32_t width = 0;
  uint32_t changed = 0;
  uint32_t uncertain = 0;
  std::vector<uint8_t> symbols;  // of the changed list; kClass: class after class
  std::vector<uint8_t> escapes;
  std::vector<uint8_t> unsure;
  std::array<std::vector<uint8_t>, kMaxWidth> planes;  // kAbsolute
  BitWriter bits;
  uint64_t plain_size = 0;  // of the smallest plain form; 0 for a block without changes

  // kClass: the classes of the base, the listed elements of each, and all elements of each.
  uint32_t classes = 0;
  std::array<uint32_t, kernels::kMaxClasses> counts{};
  std::array<uint32_t, kernels::kMaxClasses> populations{};
  // XXH3-64 of ClassRanks::ranks and steps, to recognise them in the decoded stream.
  uint64_t ranks_hash = 0;
  uint64_t steps_hash = 0;
};

// kAbsolute, kStep. listing: List() of the block.
void Split(const Decoded& listing, Pieces& out);
// kClass. block_bits: the new bits of the whole block.
void SplitByClass(const kernels::ClassTable& walk, const kernels::ClassCuts& cuts, const BlockChanges& block,
                  const Decoded& listing, BlockBits block_bits, Pieces& out);

uint64_t HashOf(std::span<const uint32_t> numbers);

}  // namespace deltawire::codec
