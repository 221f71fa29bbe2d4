#include "codec/frequency_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace deltawire::codec {
namespace {

// 0 for 0. The mask tells static analysers the range.
unsigned Log2Floor(uint32_t value) { return (static_cast<unsigned>(std::bit_width(value | 1)) - 1) & 31; }

// Mantissa bits dropped from a frequency with this exponent.
unsigned DroppedBits(unsigned exponent, unsigned precision) {
  return exponent > precision ? exponent - precision : 0;
}

uint32_t NearestOnGrid(double value, unsigned precision) {
  if (value <= 1) return 1;
  const unsigned dropped = DroppedBits(Log2Floor(static_cast<uint32_t>(value)), precision);
  const double grid = static_cast<double>(1u << dropped);
  return static_cast<uint32_t>(std::lround(value / grid)) << dropped;
}

// value > 1.
uint32_t NextBelowOnGrid(uint32_t value, unsigned precision) {
  const unsigned dropped = DroppedBits(Log2Floor(value - 1), precision);
  return (value - 1) >> dropped << dropped;
}

FrequencyTable Quantise(const Histogram& histogram, unsigned precision) {
  FrequencyTable table;
  table.precision = precision;
  const uint64_t total = std::accumulate(histogram.begin(), histogram.end(), uint64_t{0});
  if (total == 0) return table;
  const auto top =
      static_cast<size_t>(std::max_element(histogram.begin(), histogram.end()) - histogram.begin());
  table.implied = static_cast<unsigned>(top);
  const auto share = [&](size_t s) {
    return static_cast<double>(histogram[s]) * kFrequencySum / static_cast<double>(total);
  };
  int64_t others = 0;
  for (size_t s = 0; s < kMaxSymbols; ++s) {
    if (s == top || histogram[s] == 0) continue;
    table.frequency[s] = static_cast<uint16_t>(NearestOnGrid(share(s), precision));
    others += table.frequency[s];
  }
  // The most frequent symbol takes what is left. Rounding errors mostly cancel; where rare symbols (at least
  // 1 each) or a coarse grid leave it too little, the others give way, one grid point each in turn.
  const auto wanted = std::max<int64_t>(1, static_cast<int64_t>(0.75 * share(top)));
  while (kFrequencySum - others < wanted) {
    for (size_t s = 0; s < kMaxSymbols && kFrequencySum - others < wanted; ++s) {
      if (s == top || table.frequency[s] <= 1) continue;
      const uint32_t lower = NextBelowOnGrid(table.frequency[s], precision);
      others -= table.frequency[s] - lower;
      table.frequency[s] = static_cast<uint16_t>(lower);
    }
  }
  table.frequency[top] = static_cast<uint16_t>(kFrequencySum - others);
  return table;
}

// Exp-Golomb code of order 0: n zeros, a one, then the n bits of value + 1 below its leading one.
void PutUnsigned(uint32_t value, BitWriter& out) {
  const unsigned length = Log2Floor(value + 1);
  out.Put(uint64_t{1} << length, length + 1);
  out.Put(value + 1 - (1u << length), length);
}
// Values above 510 come back as 511: nothing here is so large.
uint32_t GetUnsigned(BitReader& in) {
  unsigned length = 0;
  while (in.Read(1) == 0) {
    if (++length > 8) return 511;
  }
  return (1u << length) + static_cast<uint32_t>(in.Read(length)) - 1;
}

// Differences 0, -1, 1, -2, ... -> 0, 1, 2, 3, ...
uint32_t Fold(int value) { return static_cast<uint32_t>(value < 0 ? -2 * value - 1 : 2 * value); }
int Unfold(uint32_t folded) {
  const auto half = static_cast<int>(folded / 2);
  return folded % 2 != 0 ? -half - 1 : half;
}

// The i-th symbol whose frequency is written: all but the implied one.
unsigned CodedSymbol(unsigned i, unsigned implied) { return i < implied ? i : i + 1; }

uint64_t SerialisedBits(const FrequencyTable& table) {
  BitWriter bits;
  WriteTable(table, bits);
  return bits.bit_count();
}

}  // namespace

bool FrequencyTable::empty() const { return alphabet() == 0; }

unsigned FrequencyTable::alphabet() const {
  unsigned count = kMaxSymbols;
  while (count > 0 && frequency[count - 1] == 0) --count;
  return count;
}

double CodeLengthBits(const Histogram& histogram, const FrequencyTable& table) {
  double bits = 0;
  for (size_t s = 0; s < kMaxSymbols; ++s) {
    if (histogram[s] == 0) continue;
    if (table.frequency[s] == 0) return std::numeric_limits<double>::infinity();
    bits += static_cast<double>(histogram[s]) * (kFrequencyBits - std::log2(table.frequency[s]));
  }
  return bits;
}

FrequencyTable FitTable(const Histogram& histogram) {
  FrequencyTable best;
  double least = std::numeric_limits<double>::infinity();
  for (const unsigned precision : {1u, 2u, 3u, 4u, 6u, 11u}) {
    const FrequencyTable table = Quantise(histogram, precision);
    const double cost = CodeLengthBits(histogram, table) + static_cast<double>(SerialisedBits(table));
    if (cost < least) {
      least = cost;
      best = table;
    }
  }
  return best;
}

void WriteTable(const FrequencyTable& table, BitWriter& out) {
  const unsigned alphabet = table.alphabet();
  out.Put(alphabet > 0, 1);
  if (alphabet == 0) return;
  out.Put(alphabet - 1, 8);
  out.Put(table.implied, 8);
  out.Put(table.precision, 4);
  int previous = 0;
  for (unsigned i = 0; i + 1 < alphabet; ++i) {
    const uint32_t frequency = table.frequency[CodedSymbol(i, table.implied)];
    const int token = std::bit_width(frequency);
    PutUnsigned(Fold(token - previous), out);
    previous = token;
    if (token == 0) {
      uint32_t run = 0;
      for (; i + 2 < alphabet && table.frequency[CodedSymbol(i + 1, table.implied)] == 0; ++i) ++run;
      PutUnsigned(run, out);
    } else {
      const unsigned exponent = Log2Floor(frequency);
      const unsigned dropped = DroppedBits(exponent, table.precision);
      out.Put((frequency - (1u << exponent)) >> dropped, exponent - dropped);
    }
  }
}

Result<FrequencyTable> ReadTable(BitReader& in) {
  FrequencyTable table;
  if (in.Read(1) == 0) return table;
  const auto last = static_cast<unsigned>(in.Read(8));
  const auto top = static_cast<unsigned>(in.Read(8));
  table.implied = top;
  table.precision = static_cast<unsigned>(in.Read(4));
  if (top > last || table.precision >= kFrequencyBits) {
    return Fail(Code::kCorrupt,
                "entropy table header: implied symbol {} of {}, precision {}; expected it among them and "
                "precision < {}",
                top, last + 1, table.precision, kFrequencyBits);
  }
  int token = 0;
  uint32_t others = 0;
  for (unsigned i = 0; i < last; ++i) {
    token += Unfold(GetUnsigned(in));
    if (token < 0 || token > static_cast<int>(kFrequencyBits)) {
      return Fail(Code::kCorrupt, "entropy table: frequency of symbol {} needs {} bits, expected 0 to {}",
                  CodedSymbol(i, top), token, kFrequencyBits);
    }
    if (token == 0) {
      i += GetUnsigned(in);
      if (i >= last) return Fail(Code::kCorrupt, "entropy table: a run of absent symbols passes the last");
      continue;
    }
    const unsigned exponent = static_cast<unsigned>(token) - 1;
    const unsigned dropped = DroppedBits(exponent, table.precision);
    const uint32_t frequency =
        (1u << exponent) + (static_cast<uint32_t>(in.Read(exponent - dropped)) << dropped);
    table.frequency[CodedSymbol(i, top)] = static_cast<uint16_t>(frequency);
    others += frequency;
  }
  if (others >= kFrequencySum) {
    return Fail(Code::kCorrupt,
                "entropy table: frequencies add up to {} without the implied one, expected < {}", others,
                kFrequencySum);
  }
  table.frequency[top] = static_cast<uint16_t>(kFrequencySum - others);
  if (table.frequency[last] == 0) {
    return Fail(Code::kCorrupt, "entropy table: the last symbol {} has frequency 0", last);
  }
  return table;
}

}  // namespace deltawire::codec
