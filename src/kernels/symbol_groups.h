// Groups of 16 list entries as symbols of the entropy coder with raw bits, and back: what a processor can do
// for several entries at once of what codec/step_symbols.cc does. Elements of 2 bytes only. The loops there
// define the result, and do what is not done here.
#pragma once

#include <cstdint>

namespace deltawire::kernels {

// Entries that arrays may be written beyond what counts.
inline constexpr uint32_t kGroupEntries = 16;

// Where the next bit goes: bits of `pending` below `used` (< 8) wait for their byte.
struct BitSink {
  uint8_t* out;
  uint64_t pending;
  uint32_t used;
};

// Whole bytes and the bit to be read next.
struct BitSource {
  const uint8_t* bytes;
  uint64_t size;
  uint64_t position;
};

struct SymbolGroups {
  const char* name;

  // Positions and steps to symbols, extras and escaped steps; `before` is the position before the first, plus
  // one. Appends to the array of escapes (room for kGroupEntries more than there are). Returns how many
  // entries were done, from the first on: a multiple of kGroupEntries, perhaps none.
  uint32_t (*split)(const uint32_t* positions, const uint16_t* steps, uint32_t count, uint32_t before,
                    uint8_t* symbols, BitSink* bits, uint16_t* escaped, uint32_t* escaped_count);

  // The inverse; symbols are below 240. `next`: the position before the first, plus one; then that after the
  // last one done. Steps of escapes are 0 and their indices are appended to `escape_at` (room as above).
  // Reads no byte outside `bits`, and leaves entries near their end undone.
  uint32_t (*join)(const uint8_t* symbols, uint32_t count, BitSource* bits, uint64_t* next,
                   uint32_t* positions, uint16_t* steps, uint32_t* escape_at, uint32_t* escape_count);
};

// Does nothing: everything is left to the loops that define the result.
const SymbolGroups& NoSymbolGroups();
// The best that this processor runs.
const SymbolGroups& CpuSymbolGroups();

}  // namespace deltawire::kernels
