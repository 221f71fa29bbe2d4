#include "delta/member_bits.h"

#include <utility>

namespace deltawire::delta {

MemberBits::MemberBits(std::span<const BlockMember> members, std::vector<uint32_t> list, uint32_t bytes_each,
                       Bytes live_bits)
    : width(bytes_each), live(std::move(live_bits)) {
  live.resize(list.size() * width);
  if (members.size() == 1) {
    begin.push_back(0);
    positions.push_back(std::move(list));
    return;
  }
  ListRange range;
  for (const BlockMember& member : members) {
    range = RangeOf(member, list, range.end);
    begin.push_back(range.begin * width);
    positions.push_back(PositionsIn(member, list, range));
  }
}

MutableByteSpan MemberBits::Of(size_t member, MutableByteSpan bits) const {
  return bits.subspan(begin[member], Count(member) * width);
}

Bytes MemberBits::Take(size_t member, Bytes& bits) const {
  if (positions.size() == 1) return std::move(bits);
  const ByteSpan part = Of(member, bits);
  return {part.begin(), part.end()};
}

}  // namespace deltawire::delta
