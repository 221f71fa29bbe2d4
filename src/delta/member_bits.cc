#include "delta/member_bits.h"

#include <utility>

namespace deltawire::delta {

MemberBits::MemberBits(std::span<const BlockMember> members, std::span<const uint32_t> list,
                       uint32_t bytes_each)
    : width(bytes_each), live(list.size() * bytes_each) {
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
