#include "delta/block_member.h"

#include <algorithm>

namespace deltawire::delta {
namespace {

template <class T>
std::vector<T> Slice(const std::vector<T>& from, const ListRange& range, size_t each) {
  return {from.begin() + static_cast<ptrdiff_t>(range.begin * each),
          from.begin() + static_cast<ptrdiff_t>(range.end * each)};
}

}  // namespace

Result<std::vector<BlockMember>> MembersOf(const format::BlockEntry& entry,
                                           const format::Inventory& inventory, const GridIndex& grid) {
  const auto block = grid.Find(entry.tensor, entry.box);
  if (!block) {
    return Fail(
        Code::kUnsupported,
        "tensor {}: block {} is not one of its inventory grid; this build applies whole grid blocks only",
        inventory.tensors[entry.tensor].name, BoxText(entry.box));
  }
  std::vector<BlockMember> members = {
      {entry.tensor, *block, 0, static_cast<uint32_t>(ElementCount(entry.box))}};
  for (const uint32_t tensor : entry.joined) {
    const auto& boxes = grid.boxes(tensor);
    if (boxes.size() != 1) {
      return Fail(
          Code::kUnsupported,
          "tensor {}: joined with others although its inventory grid cuts it into {} blocks; this build "
          "applies whole grid blocks only",
          inventory.tensors[tensor].name, boxes.size());
    }
    members.push_back({tensor, 0, members.back().first + members.back().elements,
                       static_cast<uint32_t>(ElementCount(boxes[0]))});
  }
  return members;
}

std::string MembersText(std::span<const BlockMember> members, const format::Inventory& inventory,
                        const GridIndex& grid) {
  const BlockMember& first = members.front();
  const std::string& name = inventory.tensors[first.tensor].name;
  if (members.size() == 1) {
    return fmt::format("tensor {}, block {}", name, BoxText(grid.boxes(first.tensor)[first.block]));
  }
  return fmt::format("joint block of {} tensors, {} to {}", members.size(), name,
                     inventory.tensors[members.back().tensor].name);
}

ListRange RangeOf(const BlockMember& member, std::span<const uint32_t> positions, size_t from) {
  const auto start = positions.begin() + static_cast<ptrdiff_t>(from);
  const auto begin = std::lower_bound(start, positions.end(), member.first);
  const auto end = std::lower_bound(begin, positions.end(), member.first + member.elements);
  return {static_cast<size_t>(begin - positions.begin()), static_cast<size_t>(end - positions.begin())};
}

std::vector<uint32_t> PositionsIn(const BlockMember& member, std::span<const uint32_t> positions,
                                  const ListRange& range) {
  std::vector<uint32_t> out(positions.begin() + static_cast<ptrdiff_t>(range.begin),
                            positions.begin() + static_cast<ptrdiff_t>(range.end));
  for (uint32_t& position : out) position -= member.first;
  return out;
}

codec::Decoded ChangesOf(const BlockMember& member, const codec::Decoded& changes) {
  const size_t width = changes.width;
  codec::Decoded out;
  out.width = changes.width;
  out.steps = changes.steps;
  const ListRange changed = RangeOf(member, changes.changed);
  out.changed = PositionsIn(member, changes.changed, changed);
  out.values = Slice(changes.values, changed, width);
  const ListRange uncertain = RangeOf(member, changes.uncertain);
  out.uncertain = PositionsIn(member, changes.uncertain, uncertain);
  out.uncertain_residue = Slice(changes.uncertain_residue, uncertain, 1);
  out.uncertain_bits = Slice(changes.uncertain_bits, uncertain, width);
  return out;
}

}  // namespace deltawire::delta
