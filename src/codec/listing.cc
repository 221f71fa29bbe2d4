#include "codec/listing.h"

#include <cstring>

#include "codec/ordinal.h"
#include "kernels/kernels.h"

namespace deltawire::codec {
namespace {

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

Decoded ListUncertain(const BlockChanges& block) {
  Decoded out;
  out.width = block.width;
  out.steps = true;
  const size_t count = block.uncertain.size();
  out.uncertain.assign(block.uncertain.begin(), block.uncertain.end());
  out.uncertain_residue.assign(count, 0xFF);
  out.uncertain_bits.assign(block.uncertain_new.begin(), block.uncertain_new.end());
  if (block.width != 2) return out;
  for (size_t i = 0; i < count; ++i) {
    if (block.uncertain_span[i] != 1) continue;
    const auto after = Ordinal(LoadLe<uint16_t>(block.uncertain_new.data() + 2 * i));
    const auto above = static_cast<uint16_t>(after - Ordinal(block.uncertain_low[i]));
    // The base is `low` or low + 1: the new value must lie in [old - 1, old + 2] of both.
    if (above > 2) continue;
    out.uncertain_residue[i] = after & 3;
    std::memset(out.uncertain_bits.data() + 2 * i, 0, 2);
  }
  return out;
}

Decoded List(Coding coding, const BlockChanges& block) {
  if (coding != Coding::kAbsolute) {
    Decoded out = ListUncertain(block);
    out.changed.assign(block.changed.begin(), block.changed.end());
    out.values.resize(block.changed.size() * block.width);
    kernels::CpuHostTable().steps(block.width, block.old_bits.data(), block.new_bits.data(),
                                  static_cast<uint32_t>(block.changed.size()), out.values.data());
    return out;
  }
  Decoded out;
  out.width = block.width;
  if (block.uncertain.empty()) {
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
