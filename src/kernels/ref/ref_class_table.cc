// The loops that define every result of ClassTable.
#include "kernels/class_walk.h"
#include "kernels/element.h"

namespace deltawire::kernels {
namespace {

uint32_t ClassAt(const uint8_t* p, uint32_t width, const ClassCuts& cuts) {
  const auto key = static_cast<uint8_t>(LoadBits(p, width) << 1 >> (8 * (width - 1)));
  uint32_t c = 0;
  while (c + 1 < cuts.classes && cuts.cut[c] <= key) ++c;
  return c;
}

void Copy(const void* from, uint64_t i, void* to, uint64_t k, uint32_t width) {
  std::memcpy(static_cast<uint8_t*>(to) + k * width, static_cast<const uint8_t*>(from) + i * width, width);
}

void Rank(const void* bits, uint32_t width, uint32_t n, uint32_t first, const ClassCuts& cuts,
          const uint32_t* pos, const void* old_bits, const void* steps, uint32_t k, RankList* lists) {
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const bool listed = found < k && pos[found] == first + i;
    const auto* base = static_cast<const uint8_t*>(listed ? old_bits : bits);
    RankList& list = lists[ClassAt(base + (listed ? found : i) * width, width, cuts)];
    if (listed) {
      Copy(steps, found++, list.steps, list.count, width);
      list.ranks[list.count++] = list.seen;
    }
    ++list.seen;
  }
}

uint32_t Place(const void* bits, uint32_t width, uint32_t n, uint32_t first, const ClassCuts& cuts,
               ClassList* lists, uint32_t* pos, void* steps, void* base_bits) {
  uint32_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    ClassList& list = lists[ClassAt(static_cast<const uint8_t*>(bits) + i * width, width, cuts)];
    if (list.taken < list.count && list.ranks[list.taken] == list.seen) {
      Copy(list.steps, list.taken++, steps, found, width);
      Copy(bits, i, base_bits, found, width);
      pos[found++] = first + static_cast<uint32_t>(i);
    }
    ++list.seen;
  }
  return found;
}

constexpr ClassTable kTable = {.name = "ref", .rank = Rank, .place = Place};

}  // namespace

const ClassTable& RefClassTable() { return kTable; }

}  // namespace deltawire::kernels
