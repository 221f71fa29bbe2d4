#include "codec/rans.h"

#include <memory>
#include <utility>

namespace deltawire::codec {
namespace {

constexpr uint32_t kSlotMask = kFrequencySum - 1;

// Unrolled, so that the states can live in registers.
template <unsigned kLanes, class F>
void ForEachLane(F&& f) {
  [&]<unsigned... kLane>(std::integer_sequence<unsigned, kLane...>) {
    (f(kLane), ...);
  }(std::make_integer_sequence<unsigned, kLanes>{});
}

// Symbols backwards from the end; words grow downwards. Returns the new lowest word.
template <unsigned kLanes>
uint16_t* EncodeSegment(const RansSegment& segment, uint32_t* states, uint16_t* words, uint32_t& present) {
  const RansEncodeTable& table = *segment.table;
  const uint8_t* symbols = segment.symbols.data();
  uint32_t x[kLanes];
  for (unsigned lane = 0; lane < kLanes; ++lane) x[lane] = states[lane];
  const auto step = [&](unsigned lane, uint8_t symbol) {
    const RansEncodeTable::Symbol& s = table[symbol];
    present &= s.present;
    uint32_t state = x[lane];
    // Stored always, kept only when the state was too large: no branch on data.
    words[-1] = static_cast<uint16_t>(state);
    const uint32_t renormalise = state > s.limit;
    words -= renormalise;
    state >>= 16 * renormalise;
    const auto quotient = static_cast<uint32_t>(static_cast<unsigned __int128>(state) * s.reciprocal >> 64);
    x[lane] = state + s.bias + quotient * s.complement;
  };
  size_t at = segment.symbols.size();
  for (; at % kLanes != 0; --at) step((at - 1) % kLanes, symbols[at - 1]);
  for (; at > 0; at -= kLanes) {
    ForEachLane<kLanes>([&](unsigned i) { step(kLanes - 1 - i, symbols[at - 1 - i]); });
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) states[lane] = x[lane];
  return words;
}

// Returns how many words were read, or -1 when they ran out.
template <unsigned kLanes>
ptrdiff_t DecodeSegment(const RansDecodeTable& table, uint32_t* states, ByteSpan words,
                        std::span<uint8_t> symbols) {
  uint32_t x[kLanes];
  for (unsigned lane = 0; lane < kLanes; ++lane) x[lane] = states[lane];
  const uint8_t* next = words.data();
  const size_t word_count = words.size() / 2;
  const uint8_t* const end = words.data() + 2 * word_count;
  const auto pop = [&](unsigned lane) {
    const uint32_t entry = table[x[lane] & kSlotMask];
    x[lane] =
        RansDecodeTable::FrequencyOf(entry) * (x[lane] >> kFrequencyBits) + RansDecodeTable::OffsetOf(entry);
    return RansDecodeTable::SymbolOf(entry);
  };
  size_t at = 0;
  const size_t whole = symbols.size() / kLanes * kLanes;
  while (at < whole && static_cast<size_t>(end - next) >= 2 * kLanes) {
    ForEachLane<kLanes>([&](unsigned lane) {
      symbols[at + lane] = pop(lane);
      // Masks: whether a state needs a word is close to a coin flip, and compilers make a branch of `?:`.
      const uint32_t refill = x[lane] < kRansLower;
      x[lane] = x[lane] << 16 * refill | (LoadLe<uint16_t>(next) & (0 - refill));
      next += 2 * refill;
    });
    at += kLanes;
  }
  for (; at < symbols.size(); ++at) {
    const unsigned lane = at % kLanes;
    symbols[at] = pop(lane);
    if (x[lane] < kRansLower) {
      if (next == end) return -1;
      x[lane] = x[lane] << 16 | LoadLe<uint16_t>(next);
      next += 2;
    }
  }
  for (unsigned lane = 0; lane < kLanes; ++lane) states[lane] = x[lane];
  return (next - words.data()) / 2;
}

}  // namespace

RansEncodeTable::RansEncodeTable(const FrequencyTable& table) {
  uint32_t start = 0;
  for (unsigned s = 0; s < kMaxSymbols; ++s) {
    const uint32_t f = table.frequency[s];
    Symbol& symbol = symbols_[s];
    symbol.present = f > 0;
    symbol.limit = f > 0 ? static_cast<uint32_t>((uint64_t{f} << 20) - 1) : ~0u;
    symbol.complement = kFrequencySum - f;
    if (f <= 1) {
      // 2^64 / 1 does not fit: the largest reciprocal gives state - 1 as the quotient, the bias adds the
      // rest.
      symbol.reciprocal = ~uint64_t{0};
      symbol.bias = start + kFrequencySum - 1;
    } else {
      symbol.reciprocal = ~uint64_t{0} / f + 1;
      symbol.bias = start;
    }
    start += f;
  }
}

bool RansEncode(std::span<const RansSegment> segments, unsigned lanes, Bytes& out) {
  size_t symbol_count = 0;
  for (const RansSegment& segment : segments) symbol_count += segment.symbols.size();
  // A symbol gives up one word at most; one more for the store that is not kept.
  const auto buffer = std::make_unique_for_overwrite<uint16_t[]>(symbol_count + 1);
  uint16_t* const end = buffer.get() + symbol_count + 1;
  uint16_t* words = end;
  std::array<uint32_t, kMaxLanes> states;
  states.fill(kRansLower);
  uint32_t present = 1;
  for (size_t i = segments.size(); i-- > 0;) {
    switch (lanes) {
      case 1: words = EncodeSegment<1>(segments[i], states.data(), words, present); break;
      case 2: words = EncodeSegment<2>(segments[i], states.data(), words, present); break;
      case 4: words = EncodeSegment<4>(segments[i], states.data(), words, present); break;
      case 8: words = EncodeSegment<8>(segments[i], states.data(), words, present); break;
      default: words = EncodeSegment<kMaxLanes>(segments[i], states.data(), words, present); break;
    }
  }
  if (present == 0) return false;
  for (unsigned lane = 0; lane < lanes; ++lane) AppendLe(states[lane], out);
  const auto word_bytes = static_cast<size_t>(end - words) * 2;
  const size_t at = out.size();
  out.resize(at + word_bytes);
  if (word_bytes > 0) std::memcpy(out.data() + at, words, word_bytes);
  return true;
}

RansDecodeTable::RansDecodeTable(const FrequencyTable& table) {
  uint32_t slot = 0;
  for (uint32_t s = 0; s < kMaxSymbols; ++s) {
    const uint32_t f = table.frequency[s];
    for (uint32_t offset = 0; offset < f; ++offset) slots_[slot++] = (f - 1) << 20 | offset << 8 | s;
  }
}

bool RansDecoder::Start(ByteSpan stream, unsigned lanes) {
  if (stream.size() < 4 * size_t{lanes}) return false;
  lanes_ = lanes;
  bool in_range = true;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    states_[lane] = LoadLe<uint32_t>(stream.data() + 4 * lane);
    in_range &= states_[lane] >= kRansLower;
  }
  rest_ = stream.subspan(4 * size_t{lanes});
  return in_range;
}

bool RansDecoder::Decode(const RansDecodeTable& table, std::span<uint8_t> symbols) {
  ptrdiff_t used = 0;
  switch (lanes_) {
    case 1: used = DecodeSegment<1>(table, states_.data(), rest_, symbols); break;
    case 2: used = DecodeSegment<2>(table, states_.data(), rest_, symbols); break;
    case 4: used = DecodeSegment<4>(table, states_.data(), rest_, symbols); break;
    case 8: used = DecodeSegment<8>(table, states_.data(), rest_, symbols); break;
    default: used = DecodeSegment<kMaxLanes>(table, states_.data(), rest_, symbols); break;
  }
  if (used < 0) return false;
  rest_ = rest_.subspan(2 * static_cast<size_t>(used));
  return true;
}

bool RansDecoder::AtEnd() const {
  for (unsigned lane = 0; lane < lanes_; ++lane) {
    if (states_[lane] != kRansLower) return false;
  }
  return true;
}

}  // namespace deltawire::codec
