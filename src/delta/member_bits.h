// One list of a block's changes taken apart by member, with the old bits at its positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "delta/block_member.h"

namespace deltawire::delta {

// Bit arrays hold the whole list, member after member.
struct MemberBits {
  // list: ascending positions in the block. live: the live bits there, if they are known; else empty, and the
  // array is for the caller to fill.
  MemberBits(std::span<const BlockMember> members, std::vector<uint32_t> list, uint32_t width,
             Bytes live = {});

  size_t Count(size_t member) const { return positions[member].size(); }
  // One member's part of an array.
  MutableByteSpan Of(size_t member, MutableByteSpan bits) const;
  // The same as an array of its own; takes `bits` itself where the block has one member.
  Bytes Take(size_t member, Bytes& bits) const;
  // What steps start from: the live bits, or what earlier updates have staged over them.
  MutableByteSpan base() { return staged.empty() ? live : staged; }

  std::vector<std::vector<uint32_t>> positions;  // of each member, in the member
  std::vector<size_t> begin;                     // where each member's part begins, in bytes
  uint32_t width;
  Bytes live;    // become the undo log
  Bytes staged;  // empty where nothing is staged over any member
};

}  // namespace deltawire::delta
