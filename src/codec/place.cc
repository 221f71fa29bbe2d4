#include <cstring>

#include "codec/codec.h"
#include "codec/listing.h"
#include "codec/virtual_base.h"

namespace deltawire::codec {
namespace {

// Old bits at ascending positions.
Bytes Lookup(BlockBits base, const Overlay& above, uint32_t width, std::span<const uint32_t> positions) {
  Bytes bits(positions.size() * width);
  size_t i = 0;
  size_t piece = 0;
  uint64_t first = 0;  // element that the piece begins with
  for (size_t k = 0; k < positions.size(); ++k) {
    for (; positions[k] - first >= base[piece].size() / width; ++piece) first += base[piece].size() / width;
    while (i < above.positions.size() && above.positions[i] < positions[k]) ++i;
    const bool over = i < above.positions.size() && above.positions[i] == positions[k];
    const uint8_t* from =
        over ? above.bits.data() + i * width : base[piece].data() + (positions[k] - first) * width;
    std::memcpy(bits.data() + k * width, from, width);
  }
  return bits;
}

// Two ascending lists as one; where both have an element, `over` counts.
void Merge(const Overlay& under, const Overlay& over, uint32_t width, std::vector<uint32_t>& positions,
           Bytes& bits) {
  size_t i = 0;
  size_t k = 0;
  const auto take = [&](const Overlay& from, size_t& at) {
    positions.push_back(from.positions[at]);
    bits.insert(bits.end(), from.bits.data() + at * width, from.bits.data() + (at + 1) * width);
    ++at;
  };
  while (i < under.positions.size() || k < over.positions.size()) {
    if (k == over.positions.size() ||
        (i < under.positions.size() && under.positions[i] < over.positions[k])) {
      take(under, i);
    } else {
      if (i < under.positions.size() && under.positions[i] == over.positions[k]) ++i;
      take(over, k);
    }
  }
}

}  // namespace

Result<Decoded> Place(const kernels::ClassTable& walk, BlockBits base, const Overlay& above,
                      const Decoded& decoded) {
  if (!decoded.ranked) return decoded;
  const uint32_t width = decoded.width;
  const ClassRanks& classes = decoded.classes;

  // The writer's base has the new bits where it does not know the old ones.
  Overlay overlay = above;
  std::vector<uint32_t> positions;
  Bytes bits;
  Bytes uncertain_new(decoded.uncertain.size() * width);
  Decoded out;
  out.width = width;
  out.steps = true;
  out.uncertain = decoded.uncertain;
  out.uncertain_residue = decoded.uncertain_residue;
  out.uncertain_bits = decoded.uncertain_bits;
  if (!decoded.uncertain.empty()) {
    Resolve(out, {}, Lookup(base, above, width, decoded.uncertain), {}, uncertain_new);
    overlay = {decoded.uncertain, uncertain_new};
    if (!above.positions.empty()) {
      Merge(above, overlay, width, positions, bits);
      overlay = {positions, bits};
    }
  }

  std::array<kernels::ClassList, kernels::kMaxClasses> lists{};
  uint64_t at = 0;
  for (uint32_t c = 0; c < classes.cuts.classes; ++c) {
    lists[c] = {classes.ranks.data() + at, classes.steps.data() + at * width, classes.counts[c], 0, 0};
    at += classes.counts[c];
  }
  const size_t count = classes.ranks.size();
  std::vector<uint32_t> changed(count + kernels::kPlaceSlack);
  Bytes values((count + kernels::kPlaceSlack) * width);
  Bytes base_bits((count + kernels::kPlaceSlack) * width);
  size_t found = 0;
  WalkVirtualBase(base, width, overlay, [&](const uint8_t* run, uint32_t first, uint32_t length) {
    found += walk.place(run, width, length, first, classes.cuts, lists.data(), changed.data() + found,
                        values.data() + found * width, base_bits.data() + found * width);
  });
  for (uint32_t c = 0; c < classes.cuts.classes; ++c) {
    if (lists[c].taken == lists[c].count) continue;
    return Fail(
        Code::kWrongBase,
        "class {} of {}: the update lists its element {}, this base has {} elements of the class; it is "
        "not the base that the update was coded against",
        c, classes.cuts.classes, lists[c].ranks[lists[c].taken], lists[c].seen);
  }
  changed.resize(count);
  values.resize(count * width);
  base_bits.resize(count * width);
  if (Intersect(changed, decoded.uncertain)) {
    return Fail(Code::kWrongBase,
                "an element stands in both lists on this base; it is not the base that the update was coded "
                "against");
  }
  out.changed = std::move(changed);
  out.values = std::move(values);
  out.base_bits = std::move(base_bits);
  for (uint32_t c = 0; c < classes.cuts.classes; ++c) out.populations.push_back(lists[c].seen);
  return out;
}

}  // namespace deltawire::codec
