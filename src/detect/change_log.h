// First old values of the elements of one block that changed since the last publish: the accumulator of
// detection for any publish interval. A sorted list instead of a bitmap: the same union of per-step sets
// (docs/numerics.md), 8 bytes an element in it and nothing for the others.
#pragma once

#include <cstdint>
#include <vector>

namespace deltawire::detect {

enum class Base : uint8_t {
  kCertified,  // bits are the element's bits at the last publish
  kNeighbour,  // the base is bits or its successor in ordinal order
  kUnknown,    // bits mean nothing
};

// Widest served element that a log can hold; tensors served in more bytes are watched by snapshot.
inline constexpr uint32_t kMaxLoggedBytes = 4;

struct LogEntry {
  LogEntry(uint32_t at, uint32_t served_bits, Base known)
      : position(at & 0xFFFFFF), base(known), bits(served_bits) {}

  uint32_t position : 24;  // < kMaxBlockElements = 2^21
  Base base : 8;
  uint32_t bits;  // zero-extended
};
static_assert(sizeof(LogEntry) == 8);

// Ascending, distinct positions.
using ChangeLog = std::vector<LogEntry>;

// The union. Where both have an element, `older` knows its base: it logged the element before the steps that
// `newer` saw.
ChangeLog Merge(ChangeLog older, ChangeLog newer);

}  // namespace deltawire::detect
