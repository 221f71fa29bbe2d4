// A probability model of up to 256 symbols: frequencies that add up to 4096, and their serialised form.
#pragma once

#include <array>
#include <cstdint>

#include "base/status.h"
#include "codec/bit_stream.h"

namespace deltawire::codec {

inline constexpr unsigned kFrequencyBits = 12;
inline constexpr uint32_t kFrequencySum = 1u << kFrequencyBits;
inline constexpr unsigned kMaxSymbols = 256;

using Histogram = std::array<uint64_t, kMaxSymbols>;

struct FrequencyTable {
  // 0 = the symbol can't occur. All zero (no symbol at all) or adding up to kFrequencySum.
  std::array<uint16_t, kMaxSymbols> frequency{};
  // Each frequency but that of the implied symbol, which takes the rest of the sum, has at most this many
  // significant bits after the leading one.
  unsigned precision = 0;
  unsigned implied = 0;

  bool empty() const;
  // Symbols up to the highest that occurs.
  unsigned alphabet() const;
};

// The table with the least (code length of the histogram + serialised size). Every symbol of the histogram
// gets a frequency. Empty for an empty histogram.
FrequencyTable FitTable(const Histogram& histogram);
// Bits to code the histogram with the table; infinity when it lacks a symbol.
double CodeLengthBits(const Histogram& histogram, const FrequencyTable& table);

void WriteTable(const FrequencyTable& table, BitWriter& out);
// kCorrupt unless the frequencies add up to kFrequencySum. An empty table is valid.
Result<FrequencyTable> ReadTable(BitReader& in);

}  // namespace deltawire::codec
