#include "codec/plain_form.h"

#include <cstring>
#include <optional>
#include <type_traits>

#include "codec/listing.h"
#include "codec/ordinal.h"

namespace deltawire::codec {
namespace {

// A sum of comparisons: the loops over it vectorise.
template <class U>
unsigned VarintBytes(U value) {
  unsigned bytes = 1;
  for (unsigned shift = 7; shift < 8 * sizeof(U); shift += 7) bytes += value >= U{1} << shift;
  return bytes;
}

void PutVarint(uint64_t value, Bytes& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<uint8_t>(value | 0x80));
  out.push_back(static_cast<uint8_t>(value));
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

class Cursor {
 public:
  explicit Cursor(ByteSpan bytes) : bytes_(bytes) {}

  // nullptr when fewer are left.
  const uint8_t* Take(size_t count) {
    if (bytes_.size() - at_ < count) return nullptr;
    at_ += count;
    return bytes_.data() + at_ - count;
  }
  // nullopt when bytes end, the number is above `largest`, or it has needless zero bytes.
  std::optional<uint64_t> Varint(uint64_t largest) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const uint8_t* byte = Take(1);
      if (byte == nullptr) return std::nullopt;
      const uint64_t part = *byte & 0x7F;
      if (part > largest >> shift) return std::nullopt;
      value |= part << shift;
      if (*byte < 0x80) {
        if ((*byte == 0 && shift > 0) || value > largest) return std::nullopt;
        return value;
      }
    }
    return std::nullopt;
  }
  bool AtEnd() const { return at_ == bytes_.size(); }

 private:
  ByteSpan bytes_;
  size_t at_ = 0;
};

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
bool ReadPositions(Cursor& in, uint32_t elements, uint32_t count, std::vector<uint32_t>& out) {
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
bool ReadFolded(Cursor& in, Bytes& values) {
  for (size_t at = 0; at < values.size(); at += sizeof(U)) {
    const auto folded = in.Varint(static_cast<U>(~U{0}));
    if (!folded) return false;
    StoreLe(Unfold(static_cast<U>(*folded)), values.data() + at);
  }
  return true;
}

bool ReadUncertain(Cursor& in, uint32_t elements, uint32_t count, Decoded& out) {
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

uint64_t PlainSize(const Decoded& listing, uint32_t elements, PlainValues values) {
  uint64_t size = 0;
  const std::span<const uint32_t> changed = listing.changed;
  if (WritesAbsent(changed.size(), elements)) {
    ForEachGap(changed, elements, [&](uint32_t gap) { size += VarintBytes(gap); });
  } else if (!changed.empty()) {
    size += VarintBytes(changed[0]);
    for (size_t i = 1; i < changed.size(); ++i) size += VarintBytes(changed[i] - changed[i - 1] - 1);
  }
  if (values == PlainValues::kFixed) {
    size += listing.values.size();
  } else {
    WithWidth(listing.width, [&](auto zero) {
      using U = decltype(zero);
      for (size_t at = 0; at < listing.values.size(); at += sizeof(U)) {
        size += VarintBytes(Fold(LoadLe<U>(listing.values.data() + at)));
      }
    });
  }
  uint32_t next = 0;
  for (size_t i = 0; i < listing.uncertain.size(); ++i) {
    size += VarintBytes(2 * (listing.uncertain[i] - next));
    size += listing.uncertain_residue[i] == 0xFF ? listing.width : 1;
    next = listing.uncertain[i] + 1;
  }
  return size;
}

void WritePlain(const Decoded& listing, uint32_t elements, PlainValues values, Bytes& out) {
  ForEachGap(listing.changed, elements, [&](uint32_t gap) { PutVarint(gap, out); });
  if (values == PlainValues::kFixed) {
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

Result<Decoded> ReadPlain(PlainValues values, bool steps, uint32_t elements, uint32_t width, uint32_t changed,
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
  Cursor in(body);
  if (WritesAbsent(changed, elements)) {
    std::vector<uint32_t> absent;
    if (!ReadPositions(in, elements, elements - changed, absent)) return corrupt("absent positions");
    out.changed = Complement(absent, elements);
  } else if (!ReadPositions(in, elements, changed, out.changed)) {
    return corrupt("positions");
  }
  out.values.resize(size_t{changed} * width);
  if (values == PlainValues::kFixed) {
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
