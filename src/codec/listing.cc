#include "codec/listing.h"

#include <cstring>

#include "codec/ordinal.h"

namespace deltawire::codec {
namespace {

void ListSteps(const BlockChanges& block, Bytes& steps) {
  steps.resize(block.changed.size() * block.width);
  WithWidth(block.width, [&](auto zero) {
    using U = decltype(zero);
    for (size_t at = 0; at < steps.size(); at += sizeof(U)) {
      const U before = Ordinal(LoadLe<U>(block.old_bits.data() + at));
      const U after = Ordinal(LoadLe<U>(block.new_bits.data() + at));
      StoreLe(static_cast<U>(after - before), steps.data() + at);
    }
  });
}

void ListUncertain(const BlockChanges& block, Decoded& out) {
  const size_t count = block.uncertain.size();
  const uint32_t width = block.width;
  out.uncertain.assign(block.uncertain.begin(), block.uncertain.end());
  out.uncertain_residue.assign(count, 0xFF);
  out.uncertain_bits.assign(block.uncertain_new.begin(), block.uncertain_new.end());
  if (width != 2) return;
  for (size_t i = 0; i < count; ++i) {
    if (block.uncertain_span[i] != 1) continue;
    const auto after = Ordinal(LoadLe<uint16_t>(block.uncertain_new.data() + 2 * i));
    const auto above = static_cast<uint16_t>(after - Ordinal(block.uncertain_low[i]));
    // The base is `low` or low + 1: the new value must lie in [old - 1, old + 2] of both.
    if (above > 2) continue;
    out.uncertain_residue[i] = after & 3;
    std::memset(out.uncertain_bits.data() + 2 * i, 0, 2);
  }
}

void ListMerged(const BlockChanges& block, Decoded& out) {
  const uint32_t width = block.width;
  const size_t total = block.changed.size() + block.uncertain.size();
  out.changed.reserve(total);
  out.values.reserve(total * width);
  const auto take = [&](uint32_t position, ByteSpan bits, size_t i) {
    out.changed.push_back(position);
    const uint8_t* from = bits.data() + i * width;
    out.values.insert(out.values.end(), from, from + width);
  };
  size_t c = 0;
  size_t u = 0;
  while (c + u < total) {
    if (u == block.uncertain.size() || (c < block.changed.size() && block.changed[c] < block.uncertain[u])) {
      take(block.changed[c], block.new_bits, c);
      ++c;
    } else {
      take(block.uncertain[u], block.uncertain_new, u);
      ++u;
    }
  }
}

}  // namespace

Decoded List(Coding coding, const BlockChanges& block) {
  Decoded out;
  out.width = block.width;
  out.steps = coding != Coding::kAbsolute;
  if (out.steps) {
    out.changed.assign(block.changed.begin(), block.changed.end());
    ListSteps(block, out.values);
    ListUncertain(block, out);
  } else if (block.uncertain.empty()) {
    out.changed.assign(block.changed.begin(), block.changed.end());
    out.values.assign(block.new_bits.begin(), block.new_bits.end());
  } else {
    ListMerged(block, out);
  }
  return out;
}

bool Intersect(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  size_t j = 0;
  for (const uint32_t value : a) {
    while (j < b.size() && b[j] < value) ++j;
    if (j < b.size() && b[j] == value) return true;
  }
  return false;
}

}  // namespace deltawire::codec
