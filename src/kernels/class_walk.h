// Ranks of elements within classes, and back: what the coding `class` (docs/formats/codings.md) needs of the
// base of a block. Host memory only.
#pragma once

#include <cstdint>

namespace deltawire::kernels {

inline constexpr uint32_t kMaxClasses = 16;
// Entries that `place` may write beyond what counts.
inline constexpr uint32_t kPlaceSlack = 64;

// The key of an element is the eight bits below its sign: the exponent of BF16 and F32. Its class is the
// number of cuts that are not above its key.
struct ClassCuts {
  uint32_t classes = 1;          // 1 ... kMaxClasses
  uint8_t cut[kMaxClasses - 1];  // classes - 1 of them count; they ascend strictly, from 1
};

// One class while a block is ranked: its listed elements, in the order of their positions.
struct RankList {
  uint32_t* ranks;  // room for all of the class
  void* steps;      // likewise; width bytes each, as those below
  uint32_t count;   // so far
  uint32_t seen;    // elements of the class so far
};

// One class while its listed elements are looked for: their ranks (ascending, distinct; the rank of an
// element is the number of elements of its class before it in the block) with a step for each.
struct ClassList {
  const uint32_t* ranks;
  const void* steps;
  uint32_t count;
  uint32_t taken;  // found so far
  uint32_t seen;   // elements of the class so far
};

// Both functions walk n elements of `width` bytes (1, 2, 4 or 8; aligned or not), which stand in the block
// from position `first` on, and may be called for one run of a block after the other: the lists, one for each
// class, carry over. n <= 2^21.
struct ClassTable {
  const char* name;

  // Class, and rank in it, of the elements at k ascending, distinct positions of the run, whose bits in the
  // base are `old_bits`; of the others, `bits` are the base. Adds to the lists, with the elements' steps.
  void (*rank)(const void* bits, uint32_t width, uint32_t n, uint32_t first, const ClassCuts& cuts,
               const uint32_t* pos, const void* old_bits, const void* steps, uint32_t k, RankList* lists);

  // Positions (ascending), steps and base's bits of the listed elements of the run; the arrays have room for
  // kPlaceSlack entries more than are left in the lists. Returns how many were found.
  uint32_t (*place)(const void* bits, uint32_t width, uint32_t n, uint32_t first, const ClassCuts& cuts,
                    ClassList* lists, uint32_t* pos, void* steps, void* base_bits);
};

// The loops that define every result; and the best that this processor runs.
const ClassTable& RefClassTable();
const ClassTable& CpuClassTable();

}  // namespace deltawire::kernels
