// Range asymmetric numeral systems: 32-bit states, 12-bit frequencies, renormalised by 16-bit words. Several
// states (lanes) take the symbols in turn so that a processor works on them at the same time; a segment is a
// run of symbols coded with one table and starts again at lane 0. All segments share the states and words.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "codec/frequency_table.h"

namespace deltawire::codec {

// States stay in [2^16, 2^32) between symbols; the encoder starts, and the decoder ends, at the lower bound.
inline constexpr uint32_t kRansLower = 1u << 16;
inline constexpr unsigned kMaxLanes = 16;

// Lanes of a stream of that many list entries. A lane costs 4 bytes, so small streams have few.
constexpr unsigned LaneCount(uint64_t entries) {
  return entries < 1024 ? 1 : entries < 4096 ? 2 : entries < 8192 ? 4 : entries < 16384 ? 8 : kMaxLanes;
}

class RansEncodeTable {
 public:
  explicit RansEncodeTable(const FrequencyTable& table);

  struct Symbol {
    uint64_t reciprocal;  // floor(2^64 / f) + 1: exact for every 32-bit state (a 32-bit one is not)
    uint32_t limit;       // a state above it gives up a word first
    uint32_t bias;
    uint32_t complement;  // 4096 - f
    uint32_t present;     // 0 or 1
  };
  const Symbol& operator[](uint8_t symbol) const { return symbols_[symbol]; }

 private:
  std::array<Symbol, kMaxSymbols> symbols_;
};

struct RansSegment {
  const RansEncodeTable* table;
  std::span<const uint8_t> symbols;
};

// Appends the states (u32, lane 0 first) and the words (u16) to out. False, with out unchanged, when a table
// lacks a symbol of its segment.
bool RansEncode(std::span<const RansSegment> segments, unsigned lanes, Bytes& out);

class RansDecodeTable {
 public:
  // table: not empty.
  explicit RansDecodeTable(const FrequencyTable& table);
  uint32_t operator[](uint32_t slot) const { return slots_[slot]; }

  // A slot's parts: symbol in bits 0-7, slot - first slot of the symbol in bits 8-19, frequency - 1 above.
  static uint8_t SymbolOf(uint32_t entry) { return static_cast<uint8_t>(entry); }
  static uint32_t OffsetOf(uint32_t entry) { return entry >> 8 & 0xFFF; }
  static uint32_t FrequencyOf(uint32_t entry) { return (entry >> 20) + 1; }

 private:
  std::array<uint32_t, kFrequencySum> slots_;
};

// Total: reads nothing outside the stream.
class RansDecoder {
 public:
  // False when the stream is too short for the states or a state is out of range. lanes: a power of two up to
  // kMaxLanes.
  bool Start(ByteSpan stream, unsigned lanes);
  // False when the words ran out; symbols then hold arbitrary values.
  bool Decode(const RansDecodeTable& table, std::span<uint8_t> symbols);
  // True when every lane is back at the encoder's start.
  bool AtEnd() const;
  // What the words did not use.
  ByteSpan rest() const { return rest_; }

 private:
  std::array<uint32_t, kMaxLanes> states_{};
  unsigned lanes_ = 0;
  ByteSpan rest_;
};

}  // namespace deltawire::codec
