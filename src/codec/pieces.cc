#include "codec/pieces.h"

#include <algorithm>
#include <memory>

#include "base/hash.h"
#include "codec/class_statistics.h"
#include "codec/ordinal.h"
#include "codec/step_symbols.h"
#include "codec/value_planes.h"
#include "codec/virtual_base.h"

namespace deltawire::codec {
namespace {

// How many of the listed elements each class has: their old bits say which is theirs.
void CountClasses(const BlockChanges& block, const kernels::ClassCuts& cuts, std::span<uint32_t> counts) {
  std::array<uint8_t, 256> class_of;
  uint8_t c = 0;
  for (uint32_t key = 0; key < class_of.size(); ++key) {
    if (c + 1u < cuts.classes && cuts.cut[c] <= key) ++c;
    class_of[key] = c;
  }
  // Four counters a class, or neighbours of one class would wait for each other.
  std::array<std::array<uint32_t, kernels::kMaxClasses>, 4> found{};
  WithWidth(block.width, [&](auto zero) {
    using U = decltype(zero);
    for (size_t i = 0; i < block.changed.size(); ++i) {
      ++found[i % 4][class_of[ClassKey(LoadLe<U>(block.old_bits.data() + i * sizeof(U)))]];
    }
  });
  for (uint32_t each = 0; each < cuts.classes; ++each) {
    counts[each] = found[0][each] + found[1][each] + found[2][each] + found[3][each];
  }
}

}  // namespace

uint64_t HashOf(std::span<const uint32_t> numbers) {
  return Xxh3_64({reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size_bytes()});
}

void Split(const Decoded& listing, Pieces& out) {
  if (listing.steps) {
    out.symbols.resize(listing.changed.size());
    SplitSteps(listing.changed, listing.values, listing.width, out.symbols, out.escapes, out.bits);
    SplitUncertain(listing.uncertain, listing.uncertain_residue, listing.uncertain_bits, listing.width,
                   out.unsure, out.bits);
  } else {
    SplitPositions(listing.changed, out.symbols, out.bits);
    SplitValues(listing.values, listing.width, out.planes);
  }
}

void SplitByClass(const kernels::ClassTable& walk, const kernels::ClassCuts& cuts, const BlockChanges& block,
                  const Decoded& listing, BlockBits block_bits, Pieces& out) {
  const size_t count = block.changed.size();
  const uint32_t width = block.width;
  out.classes = cuts.classes;
  if (count > 0) {
    CountClasses(block, cuts, out.counts);
    const auto sorted = std::make_unique_for_overwrite<uint32_t[]>(count);
    const auto step_bytes = std::make_unique_for_overwrite<uint8_t[]>(count * width);
    const ByteSpan steps(step_bytes.get(), count * width);
    std::array<kernels::RankList, kernels::kMaxClasses> lists{};
    size_t begin = 0;
    for (uint32_t c = 0; c < cuts.classes; ++c) {
      lists[c] = {sorted.get() + begin, step_bytes.get() + begin * width, 0, 0};
      begin += out.counts[c];
    }
    size_t done = 0;
    WalkVirtualBase(block_bits, width, {}, [&](const uint8_t* run, uint32_t first, uint32_t length) {
      const auto from = block.changed.begin() + static_cast<ptrdiff_t>(done);
      const auto to = std::lower_bound(from, block.changed.end(), first + length);
      const auto listed = static_cast<uint32_t>(to - from);
      walk.rank(run, width, length, first, cuts, block.changed.data() + done,
                block.old_bits.data() + done * width, listing.values.data() + done * width, listed,
                lists.data());
      done += listed;
    });
    for (uint32_t c = 0; c < cuts.classes; ++c) out.populations[c] = lists[c].seen;
    out.ranks_hash = HashOf({sorted.get(), count});
    out.steps_hash = Xxh3_64(steps);
    out.symbols.resize(count);
    size_t at = 0;
    for (uint32_t c = 0; c < cuts.classes; ++c) {
      const uint32_t listed = out.counts[c];
      SplitSteps({sorted.get() + at, listed}, steps.subspan(at * width, listed * width), width,
                 std::span(out.symbols).subspan(at, listed), out.escapes, out.bits);
      at += listed;
    }
  }
  SplitUncertain(listing.uncertain, listing.uncertain_residue, listing.uncertain_bits, width, out.unsure,
                 out.bits);
}

}  // namespace deltawire::codec
