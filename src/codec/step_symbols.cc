#include "codec/step_symbols.h"

#include <array>
#include <memory>
#include <type_traits>

#include "codec/ordinal.h"

namespace deltawire::codec {
namespace {

// The most raw bits of a gap and of an escape, with its sign.
constexpr unsigned kMostGapBits = BucketExtraBits(kGapBuckets - 1);
constexpr unsigned kMostEscapeBits = 1 + BucketExtraBits(kMagnitudeBuckets - 1);

// Positions are below 2^21, so the arithmetic of gaps stays in 32 bits.
struct GapWriter {
  uint32_t next = 0;

  uint8_t Put(uint32_t position, BitWriter::Batch& bits) {
    const Bucketed gap = ToBucket(position - next);
    next = position + 1;
    bits.Put(gap.extra, gap.extra_bits);
    return static_cast<uint8_t>(gap.bucket);
  }
};

struct GapEntry {
  uint32_t base;
  uint8_t extra_bits;
  int8_t step;
};

constexpr std::array<GapEntry, kStepSymbols> MakeGapEntries() {
  std::array<GapEntry, kStepSymbols> entries{};
  for (unsigned s = 0; s < kStepSymbols; ++s) {
    const unsigned bucket = s % kGapBuckets;
    entries[s].base = static_cast<uint32_t>(BucketBase(bucket));
    entries[s].extra_bits = static_cast<uint8_t>(BucketExtraBits(bucket));
    entries[s].step = s / kGapBuckets == kUp ? 1 : s / kGapBuckets == kDown ? -1 : 0;
  }
  return entries;
}
constexpr std::array<GapEntry, kStepSymbols> kGapEntries = MakeGapEntries();

// The sum of 2^21 gaps of less than 2^22 fits 64 bits, so the last position alone tells whether all are
// inside the block.
struct GapReader {
  uint64_t next = 0;

  uint32_t Take(const GapEntry& entry, BitReader& bits) {
    const uint64_t position = next + entry.base + bits.Read(entry.extra_bits);
    next = position + 1;
    return static_cast<uint32_t>(position);
  }
  bool Inside(uint32_t elements) const { return next <= elements; }
};

template <class U>
uint64_t Magnitude(U step) {
  return std::make_signed_t<U>(step) < 0 ? static_cast<U>(U{0} - step) : step;
}

template <class U>
bool JoinEscape(uint8_t symbol, BitReader& bits, uint8_t* step) {
  constexpr uint64_t kLargest = uint64_t{1} << (8 * sizeof(U) - 1);
  const bool negative = bits.Read(1) != 0;
  const uint64_t magnitude = BucketBase(symbol) + bits.ReadLong(BucketExtraBits(symbol));
  StoreLe(static_cast<U>(negative ? 0 - magnitude : magnitude), step);
  return magnitude != 1 && magnitude <= kLargest - !negative && (magnitude != 0 || !negative);
}

}  // namespace

void SplitPositions(std::span<const uint32_t> positions, std::vector<uint8_t>& symbols, BitWriter& bits) {
  symbols.resize(positions.size());
  BitWriter::Batch batch = bits.Begin(positions.size() * kMostGapBits);
  GapWriter gaps;
  for (size_t i = 0; i < positions.size(); ++i) symbols[i] = gaps.Put(positions[i], batch);
  bits.Commit(batch);
}

void SplitSteps(std::span<const uint32_t> positions, ByteSpan steps, uint32_t width,
                std::span<uint8_t> symbols, std::vector<uint8_t>& escapes, BitWriter& bits,
                const kernels::SymbolGroups& groups) {
  WithWidth(width, [&](auto zero) {
    using U = decltype(zero);
    BitWriter::Batch batch = bits.Begin(positions.size() * kMostGapBits);
    GapWriter gaps;
    const auto escaped = std::make_unique_for_overwrite<U[]>(positions.size() + kernels::kGroupEntries);
    uint32_t escape_count = 0;
    size_t done = 0;
    if constexpr (sizeof(U) == 2) {
      kernels::BitSink sink = batch.sink();
      done = groups.split(positions.data(), reinterpret_cast<const uint16_t*>(steps.data()),
                          static_cast<uint32_t>(positions.size()), 0, symbols.data(), &sink, escaped.get(),
                          &escape_count);
      batch.MoveTo(sink);
      if (done > 0) gaps.next = positions[done - 1] + 1;
    }
    for (size_t i = done; i < positions.size(); ++i) {
      const U step = LoadLe<U>(steps.data() + i * sizeof(U));
      // Arithmetic, because the sign is a coin flip.
      const unsigned kind =
          kEscape - (kEscape - kUp) * (step == 1) - (kEscape - kDown) * (step == static_cast<U>(~U{0}));
      symbols[i] = static_cast<uint8_t>(gaps.Put(positions[i], batch) + kind * kGapBuckets);
      escaped[escape_count] = step;
      escape_count += kind == kEscape;
    }
    bits.Commit(batch);
    const size_t before = escapes.size();
    escapes.resize(before + escape_count);
    batch = bits.Begin(escape_count * kMostEscapeBits);
    for (size_t i = 0; i < escape_count; ++i) {
      const U step = escaped[i];
      const Bucketed magnitude = ToBucket(Magnitude(step));
      escapes[before + i] = static_cast<uint8_t>(magnitude.bucket);
      batch.Put(std::make_signed_t<U>(step) < 0, 1);
      batch.PutLong(magnitude.extra, magnitude.extra_bits);
    }
    bits.Commit(batch);
  });
}

void SplitUncertain(std::span<const uint32_t> positions, std::span<const uint8_t> residues, ByteSpan new_bits,
                    uint32_t width, std::vector<uint8_t>& symbols, BitWriter& bits) {
  symbols.resize(positions.size());
  WithWidth(width, [&](auto zero) {
    using U = decltype(zero);
    BitWriter::Batch batch = bits.Begin(positions.size() * (kMostGapBits + 8 * sizeof(U)));
    GapWriter gaps;
    for (size_t i = 0; i < positions.size(); ++i) {
      const uint8_t bucket = gaps.Put(positions[i], batch);
      if (residues[i] == 0xFF) {
        symbols[i] = static_cast<uint8_t>(bucket + kGapBuckets);
        batch.PutLong(LoadLe<U>(new_bits.data() + i * sizeof(U)), 8 * sizeof(U));
      } else {
        symbols[i] = bucket;
        batch.Put(residues[i], 2);
      }
    }
    bits.Commit(batch);
  });
}

bool JoinPositions(std::span<const uint8_t> symbols, uint32_t elements, BitReader& bits,
                   std::span<uint32_t> positions) {
  GapReader gaps;
  BitReader local = bits;  // a copy nobody else sees stays in registers
  for (size_t i = 0; i < symbols.size(); ++i) positions[i] = gaps.Take(kGapEntries[symbols[i]], local);
  bits = local;
  return gaps.Inside(elements);
}

bool JoinSteps(std::span<const uint8_t> symbols, std::span<const uint8_t> escapes, uint32_t elements,
               uint32_t width, BitReader& bits, std::span<uint32_t> positions, MutableByteSpan steps,
               const kernels::SymbolGroups& groups) {
  return WithWidth(width, [&](auto zero) {
    using U = decltype(zero);
    GapReader gaps;
    BitReader local = bits;
    const auto escape_at =
        std::make_unique_for_overwrite<uint32_t[]>(escapes.size() + kernels::kGroupEntries);
    uint32_t escape_count = 0;
    size_t done = 0;
    if constexpr (sizeof(U) == 2) {
      kernels::BitSource source = local.source();
      done = groups.join(symbols.data(), static_cast<uint32_t>(symbols.size()), &source, &gaps.next,
                         positions.data(), reinterpret_cast<uint16_t*>(steps.data()), escape_at.get(),
                         &escape_count);
      local.MoveTo(source);
    }
    for (size_t i = done; i < symbols.size(); ++i) {
      const GapEntry& entry = kGapEntries[symbols[i]];
      positions[i] = gaps.Take(entry, local);
      StoreLe(static_cast<U>(entry.step), steps.data() + i * sizeof(U));
      escape_at[escape_count] = static_cast<uint32_t>(i);
      escape_count += entry.step == 0;
    }
    bits = local;
    bool valid = gaps.Inside(elements);
    for (size_t i = 0; i < escapes.size(); ++i) {
      valid &= JoinEscape<U>(escapes[i], bits, steps.data() + escape_at[i] * sizeof(U));
    }
    return valid;
  });
}

bool JoinUncertain(std::span<const uint8_t> symbols, uint32_t elements, uint32_t width, BitReader& bits,
                   std::span<uint32_t> positions, std::span<uint8_t> residues, MutableByteSpan new_bits) {
  return WithWidth(width, [&](auto zero) {
    using U = decltype(zero);
    GapReader gaps;
    for (size_t i = 0; i < symbols.size(); ++i) {
      positions[i] = gaps.Take(kGapEntries[symbols[i] % kGapBuckets], bits);
      U raw = 0;
      if (symbols[i] >= kGapBuckets) {
        residues[i] = 0xFF;
        raw = static_cast<U>(bits.ReadLong(8 * sizeof(U)));
      } else {
        residues[i] = static_cast<uint8_t>(bits.Read(2));
      }
      StoreLe(raw, new_bits.data() + i * sizeof(U));
    }
    return gaps.Inside(elements);
  });
}

}  // namespace deltawire::codec
