#include "delta/staged_block.h"

#include <algorithm>
#include <cstring>

namespace deltawire::delta {

void Overlay(const StagedBlock* staged, std::span<const uint32_t> positions, uint32_t width, MutableByteSpan bits) {
  if (staged == nullptr) return;
  if (staged->dense) {
    for (size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(bits.data() + i * width, staged->new_bits.data() + uint64_t{positions[i]} * width, width);
    }
    return;
  }
  auto at = staged->positions.begin();
  for (size_t i = 0; i < positions.size(); ++i) {
    at = std::lower_bound(at, staged->positions.end(), positions[i]);
    if (at == staged->positions.end()) return;
    if (*at != positions[i]) continue;
    const auto index = static_cast<uint64_t>(at - staged->positions.begin());
    std::memcpy(bits.data() + i * width, staged->new_bits.data() + index * width, width);
  }
}

StagedBlock MergeStaged(const StagedBlock* staged, std::vector<uint32_t> positions, ByteSpan live_bits,
                        ByteSpan new_bits, uint32_t width) {
  StagedBlock out;
  if (staged == nullptr) {
    out.positions = std::move(positions);
    out.old_bits.assign(live_bits.begin(), live_bits.end());
    out.new_bits.assign(new_bits.begin(), new_bits.end());
    return out;
  }
  if (staged->dense) {
    out = *staged;
    for (size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(out.new_bits.data() + uint64_t{positions[i]} * width, new_bits.data() + i * width, width);
    }
    return out;
  }
  const auto take = [&](uint32_t position, ByteSpan old_at, ByteSpan new_at, size_t index) {
    out.positions.push_back(position);
    out.old_bits.insert(out.old_bits.end(), old_at.data() + index * width, old_at.data() + (index + 1) * width);
    out.new_bits.insert(out.new_bits.end(), new_at.data() + index * width, new_at.data() + (index + 1) * width);
  };
  size_t a = 0;
  size_t b = 0;
  while (a < staged->positions.size() || b < positions.size()) {
    if (b == positions.size() || (a < staged->positions.size() && staged->positions[a] < positions[b])) {
      take(staged->positions[a], staged->old_bits, staged->new_bits, a);
      ++a;
      continue;
    }
    if (a < staged->positions.size() && staged->positions[a] == positions[b]) ++a;
    take(positions[b], live_bits, new_bits, b);
    ++b;
  }
  return out;
}

}  // namespace deltawire::delta
