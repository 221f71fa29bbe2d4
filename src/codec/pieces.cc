#include "codec/pieces.h"

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "codec/class_statistics.h"
#include "codec/ordinal.h"
#include "codec/step_symbols.h"
#include "codec/value_planes.h"
#include "codec/virtual_base.h"

namespace deltawire::codec {
namespace {

using ClassOfKey = std::array<uint8_t, 256>;

ClassOfKey ClassesOfKeys(const kernels::ClassCuts& cuts) {
  ClassOfKey classes;
  uint8_t c = 0;
  for (uint32_t key = 0; key < classes.size(); ++key) {
    if (c + 1u < cuts.classes && cuts.cut[c] <= key) ++c;
    classes[key] = c;
  }
  return classes;
}

// The base has the old bits where the block was changed. Only where that moves an element to another class
// does it matter to the ranks.
void FindMoved(const BlockChanges& block, const ClassOfKey& class_of, std::vector<uint32_t>& positions,
               Bytes& bits) {
  WithWidth(block.width, [&](auto zero) {
    using U = decltype(zero);
    for (size_t i = 0; i < block.changed.size(); ++i) {
      const U before = LoadLe<U>(block.old_bits.data() + i * sizeof(U));
      const U after = LoadLe<U>(block.new_bits.data() + i * sizeof(U));
      if (class_of[ClassKey(before)] == class_of[ClassKey(after)]) continue;
      positions.push_back(block.changed[i]);
      AppendLe(before, bits);
    }
  });
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
    std::vector<uint32_t> moved;
    Bytes moved_bits;
    FindMoved(block, ClassesOfKeys(cuts), moved, moved_bits);
    std::vector<uint8_t> classes(count);
    std::vector<uint32_t> ranks(count);
    std::vector<uint32_t> local;
    size_t done = 0;
    WalkVirtualBase(block_bits, width, {moved, moved_bits},
                    [&](const uint8_t* run, uint32_t first, uint32_t length) {
                      const auto end = std::lower_bound(block.changed.begin() + static_cast<ptrdiff_t>(done),
                                                        block.changed.end(), first + length);
                      const auto listed = static_cast<size_t>(end - block.changed.begin()) - done;
                      const uint32_t* positions = block.changed.data() + done;
                      if (first > 0) {
                        local.resize(listed);
                        for (size_t i = 0; i < listed; ++i) local[i] = positions[i] - first;
                        positions = local.data();
                      }
                      walk.rank(run, width, length, cuts, positions, static_cast<uint32_t>(listed),
                                out.populations.data(), classes.data() + done, ranks.data() + done);
                      done += listed;
                    });

    for (const uint8_t c : classes) ++out.counts[c];
    std::array<uint32_t, kernels::kMaxClasses> next{};
    std::exclusive_scan(out.counts.begin(), out.counts.end(), next.begin(), 0u);
    std::vector<uint32_t> sorted(count);
    Bytes steps(count * width);
    WithWidth(width, [&](auto zero) {
      using U = decltype(zero);
      for (size_t i = 0; i < count; ++i) {
        const uint32_t at = next[classes[i]]++;
        sorted[at] = ranks[i];
        StoreLe(LoadLe<U>(listing.values.data() + i * sizeof(U)), steps.data() + at * sizeof(U));
      }
    });
    out.ranks_hash = HashOf(sorted);
    out.steps_hash = Xxh3_64(steps);
    out.symbols.resize(count);
    size_t at = 0;
    for (uint32_t c = 0; c < cuts.classes; ++c) {
      const uint32_t listed = out.counts[c];
      SplitSteps(std::span(sorted).subspan(at, listed), ByteSpan(steps).subspan(at * width, listed * width),
                 width, std::span(out.symbols).subspan(at, listed), out.escapes, out.bits);
      at += listed;
    }
  }
  SplitUncertain(listing.uncertain, listing.uncertain_residue, listing.uncertain_bits, width, out.unsure,
                 out.bits);
}

}  // namespace deltawire::codec
