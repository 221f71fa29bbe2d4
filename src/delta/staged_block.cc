#include "delta/staged_block.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace deltawire::delta {

void Overlay(const StagedBlock* staged, std::span<const uint32_t> positions, uint32_t width,
             MutableByteSpan bits) {
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

StagedBlock MergeStaged(const StagedBlock* staged, std::vector<uint32_t> positions, Bytes live_bits,
                        Bytes new_bits, uint32_t width) {
  StagedBlock out;
  if (staged == nullptr) {
    out.positions = std::move(positions);
    out.old_bits = std::move(live_bits);
    out.new_bits = std::move(new_bits);
    return out;
  }
  if (staged->dense) {
    out = *staged;
    for (size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(out.new_bits.data() + uint64_t{positions[i]} * width, new_bits.data() + i * width, width);
    }
    return out;
  }
  // Runs of the staged list between two new positions are copied whole: the new list is often a few uncertain
  // elements among many certain ones.
  const size_t most = staged->positions.size() + positions.size();
  out.positions.resize(most);
  out.old_bits.resize(most * width);
  out.new_bits.resize(most * width);
  size_t filled = 0;
  const auto append = [&](const uint32_t* at, const uint8_t* old_at, const uint8_t* new_at, size_t count) {
    if (count == 0) return;
    std::memcpy(out.positions.data() + filled, at, count * sizeof(uint32_t));
    std::memcpy(out.old_bits.data() + filled * width, old_at, count * width);
    std::memcpy(out.new_bits.data() + filled * width, new_at, count * width);
    filled += count;
  };
  size_t done = 0;
  const auto append_staged_until = [&](size_t end) {
    append(staged->positions.data() + done, staged->old_bits.data() + done * width,
           staged->new_bits.data() + done * width, end - done);
    done = end;
  };
  for (size_t i = 0; i < positions.size(); ++i) {
    size_t end = done;
    while (end < staged->positions.size() && staged->positions[end] < positions[i]) ++end;
    append_staged_until(end);
    if (done < staged->positions.size() && staged->positions[done] == positions[i]) ++done;
    append(&positions[i], live_bits.data() + i * width, new_bits.data() + i * width, 1);
  }
  append_staged_until(staged->positions.size());
  out.positions.resize(filled);
  out.old_bits.resize(filled * width);
  out.new_bits.resize(filled * width);
  return out;
}

}  // namespace deltawire::delta
