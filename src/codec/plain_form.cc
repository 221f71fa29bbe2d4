#include "codec/plain_form.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "codec/listing.h"
#include "codec/ordinal.h"
#include "codec/varint.h"

namespace deltawire::codec {
namespace {

// A sum of comparisons: the loops over it vectorise.
template <class U>
unsigned VarintBytes(U value) {
  unsigned bytes = 1;
  for (unsigned shift = 7; shift < 8 * sizeof(U); shift += 7) bytes += value >= U{1} << shift;
  return bytes;
}

// Steps 0, -1, 1, -2, ... -> 0, 1, 2, 3, ...
template <class U>
U Fold(U step) {
  const U negative = static_cast<U>(U{0} - static_cast<U>(step >> (8 * sizeof(U) - 1)));
  return static_cast<U>(static_cast<U>(step << 1) ^ negative);
}
template <class U>
U Unfold(U folded) {
  return static_cast<U>(static_cast<U>(folded >> 1) ^ static_cast<U>(U{0} - static_cast<U>(folded & 1)));
}

// The absent positions are written where they are fewer.
bool WritesAbsent(uint64_t changed, uint32_t elements) { return 2 * changed > elements; }

template <class F>
void ForEachGap(std::span<const uint32_t> positions, uint32_t elements, F&& f) {
  uint32_t next = 0;
  if (!WritesAbsent(positions.size(), elements)) {
    for (const uint32_t position : positions) {
      f(position - next);
      next = position + 1;
    }
    return;
  }
  // Absent positions are the holes between present ones; `run` present ones precede the next hole.
  uint32_t run = 0;
  const auto holes_until = [&](uint32_t end) {
    for (; next < end; ++next) {
      f(run);
      run = 0;
    }
  };
  for (const uint32_t position : positions) {
    holes_until(position);
    next = position + 1;
    ++run;
  }
  holes_until(elements);
}

// Positions from `count` gaps; false when one is not below elements.
bool ReadPositions(VarintReader& in, uint32_t elements, uint32_t count, std::vector<uint32_t>& out) {
  uint32_t next = 0;
  out.resize(count);
  for (uint32_t& position : out) {
    if (next >= elements) return false;
    const auto gap = in.Varint(elements - 1 - next);
    if (!gap) return false;
    position = next + static_cast<uint32_t>(*gap);
    next = position + 1;
  }
  return true;
}

// Positions from a bit an element; false when bytes are missing, or other bits than `count` are set.
bool ReadBitmap(VarintReader& in, uint32_t elements, uint32_t count, std::vector<uint32_t>& out) {
  const size_t size = (uint64_t{elements} + 7) / 8;
  const uint8_t* from = in.Take(size);
  if (from == nullptr) return false;
  if (elements % 8 != 0 && from[size - 1] >> elements % 8 != 0) return false;
  out.reserve(count);
  for (size_t byte = 0; byte < size; byte += 8) {
    uint64_t bits = 0;
    std::memcpy(&bits, from + byte, std::min<size_t>(8, size - byte));
    if (out.size() + static_cast<size_t>(std::popcount(bits)) > count) return false;
    for (; bits != 0; bits &= bits - 1) {
      out.push_back(static_cast<uint32_t>(8 * byte) + static_cast<uint32_t>(std::countr_zero(bits)));
    }
  }
  return out.size() == count;
}

std::vector<uint32_t> Complement(std::span<const uint32_t> absent, uint32_t elements) {
  std::vector<uint32_t> present;
  present.reserve(elements - absent.size());
  uint32_t next = 0;
  for (const uint32_t hole : absent) {
    for (; next < hole; ++next) present.push_back(next);
    ++next;
  }
  for (; next < elements; ++next) present.push_back(next);
  return present;
}

template <class U>
bool ReadFolded(VarintReader& in, Bytes& values) {
  for (size_t at = 0; at < values.size(); at += sizeof(U)) {
    const auto folded = in.Varint(static_cast<U>(~U{0}));
    if (!folded) return false;
    StoreLe(Unfold(static_cast<U>(*folded)), values.data() + at);
  }
  return true;
}

bool ReadUncertain(VarintReader& in, uint32_t elements, uint32_t count, Decoded& out) {
  uint32_t next = 0;
  out.uncertain.resize(count);
  out.uncertain_residue.resize(count);
  out.uncertain_bits.resize(size_t{count} * out.width);
  for (uint32_t i = 0; i < count; ++i) {
    if (next >= elements) return false;
    const auto gap_and_flag = in.Varint(2 * uint64_t{elements - 1 - next} + 1);
    if (!gap_and_flag) return false;
    out.uncertain[i] = next + static_cast<uint32_t>(*gap_and_flag >> 1);
    next = out.uncertain[i] + 1;
    if ((*gap_and_flag & 1) != 0) {
      const uint8_t* bits = in.Take(out.width);
      if (bits == nullptr) return false;
      out.uncertain_residue[i] = 0xFF;
      std::memcpy(out.uncertain_bits.data() + size_t{i} * out.width, bits, out.width);
    } else {
      const uint8_t* residue = in.Take(1);
      if (residue == nullptr || *residue > 3) return false;
      out.uncertain_residue[i] = *residue;
    }
  }
  return true;
}

}  // namespace

std::optional<PlainForm> PlainFormOf(uint8_t form) {
  if (form >= kFirstCodedForm && form <= kLastCodedForm) return std::nullopt;
  return PlainForm{.bitmap = form > kLastCodedForm, .varints = form % 2 != 0};
}

PlainChoice BestPlain(const Decoded& listing, uint32_t elements) {
  uint64_t gaps = 0;
  const std::span<const uint32_t> changed = listing.changed;
  if (WritesAbsent(changed.size(), elements)) {
    ForEachGap(changed, elements, [&](uint32_t gap) { gaps += VarintBytes(gap); });
  } else if (!changed.empty()) {
    gaps += VarintBytes(changed[0]);
    for (size_t i = 1; i < changed.size(); ++i) gaps += VarintBytes(changed[i] - changed[i - 1] - 1);
  }
  const uint64_t bitmap = (uint64_t{elements} + 7) / 8;
  const uint64_t fixed = listing.values.size();
  uint64_t varints = fixed;
  if (listing.steps) {
    varints = WithWidth(listing.width, [&](auto zero) {
      using U = decltype(zero);
      uint64_t size = 0;
      for (size_t at = 0; at < listing.values.size(); at += sizeof(U)) {
        size += VarintBytes(Fold(LoadLe<U>(listing.values.data() + at)));
      }
      return size;
    });
  }
  uint64_t uncertain = 0;
  uint32_t next = 0;
  for (size_t i = 0; i < listing.uncertain.size(); ++i) {
    uncertain += VarintBytes(2 * (listing.uncertain[i] - next));
    uncertain += listing.uncertain_residue[i] == 0xFF ? listing.width : 1;
    next = listing.uncertain[i] + 1;
  }
  const PlainForm form{.bitmap = bitmap < gaps, .varints = varints < fixed};
  return {form, 1 + std::min(bitmap, gaps) + std::min(varints, fixed) + uncertain};
}

void WritePlain(const Decoded& listing, uint32_t elements, PlainForm form, Bytes& out) {
  out.push_back(form.byte());
  if (form.bitmap) {
    const size_t at = out.size();
    out.resize(at + (uint64_t{elements} + 7) / 8);
    for (const uint32_t position : listing.changed) {
      out[at + position / 8] |= static_cast<uint8_t>(1 << position % 8);
    }
  } else {
    ForEachGap(listing.changed, elements, [&](uint32_t gap) { PutVarint(gap, out); });
  }
  if (!form.varints) {
    out.insert(out.end(), listing.values.begin(), listing.values.end());
  } else {
    WithWidth(listing.width, [&](auto zero) {
      using U = decltype(zero);
      for (size_t at = 0; at < listing.values.size(); at += sizeof(U)) {
        PutVarint(Fold(LoadLe<U>(listing.values.data() + at)), out);
      }
    });
  }
  uint32_t next = 0;
  for (size_t i = 0; i < listing.uncertain.size(); ++i) {
    const bool raw = listing.uncertain_residue[i] == 0xFF;
    PutVarint(2 * uint64_t{listing.uncertain[i] - next} + raw, out);
    next = listing.uncertain[i] + 1;
    if (raw) {
      const uint8_t* bits = listing.uncertain_bits.data() + i * listing.width;
      out.insert(out.end(), bits, bits + listing.width);
    } else {
      out.push_back(listing.uncertain_residue[i]);
    }
  }
}

Result<Decoded> ReadPlain(PlainForm form, bool steps, uint32_t elements, uint32_t width, uint32_t changed,
                          uint32_t uncertain, ByteSpan body) {
  const auto corrupt = [&](const char* where) {
    return Fail(Code::kCorrupt,
                "plain stream of {} bytes: its {} don't fit a block of {} elements with {} changed and {} "
                "uncertain",
                body.size(), where, elements, changed, uncertain);
  };
  Decoded out;
  out.width = width;
  out.steps = steps;
  VarintReader in(body);
  if (form.bitmap) {
    if (!ReadBitmap(in, elements, changed, out.changed)) return corrupt("bitmap");
  } else if (WritesAbsent(changed, elements)) {
    std::vector<uint32_t> absent;
    if (!ReadPositions(in, elements, elements - changed, absent)) return corrupt("absent positions");
    out.changed = Complement(absent, elements);
  } else if (!ReadPositions(in, elements, changed, out.changed)) {
    return corrupt("positions");
  }
  out.values.resize(size_t{changed} * width);
  if (!form.varints) {
    const uint8_t* from = in.Take(out.values.size());
    if (from == nullptr) return corrupt("values");
    if (!out.values.empty()) std::memcpy(out.values.data(), from, out.values.size());
  } else if (!WithWidth(width, [&](auto zero) { return ReadFolded<decltype(zero)>(in, out.values); })) {
    return corrupt("steps");
  }
  if (!ReadUncertain(in, elements, uncertain, out)) return corrupt("uncertain elements");
  if (!in.AtEnd()) return corrupt("trailing bytes");
  if (Intersect(out.uncertain, out.changed)) return corrupt("two lists, which share an element,");
  return out;
}

}  // namespace deltawire::codec
