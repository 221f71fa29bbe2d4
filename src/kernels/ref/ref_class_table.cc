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

void Rank(const void* bits, uint32_t width, uint32_t n, const ClassCuts& cuts, const uint32_t* pos,
          uint32_t k, uint32_t* seen, uint8_t* classes, uint32_t* ranks) {
  uint32_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t c = ClassAt(static_cast<const uint8_t*>(bits) + i * width, width, cuts);
    if (found < k && pos[found] == i) {
      classes[found] = static_cast<uint8_t>(c);
      ranks[found++] = seen[c];
    }
    ++seen[c];
  }
}

uint32_t Place(const void* bits, uint32_t width, uint32_t n, uint32_t first, const ClassCuts& cuts,
               ClassList* lists, uint32_t* pos, void* steps) {
  uint32_t found = 0;
  for (uint64_t i = 0; i < n; ++i) {
    ClassList& list = lists[ClassAt(static_cast<const uint8_t*>(bits) + i * width, width, cuts)];
    if (list.taken < list.count && list.ranks[list.taken] == list.seen) {
      std::memcpy(static_cast<uint8_t*>(steps) + uint64_t{found} * width,
                  static_cast<const uint8_t*>(list.steps) + uint64_t{list.taken} * width, width);
      pos[found++] = first + static_cast<uint32_t>(i);
      ++list.taken;
    }
    ++list.seen;
  }
  return found;
}

constexpr ClassTable kTable = {.name = "ref", .rank = Rank, .place = Place};

}  // namespace

const ClassTable& RefClassTable() { return kTable; }

}  // namespace deltawire::kernels
