// How other systems send a changed tensor, each method written once and as well as we know how: what the
// suite `wire` compares deltawire with. Their containers, names and checksums are left out, in their favour.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace deltawire::bench {

// One tensor at two versions. Sizes of `base` and `now` are equal multiples of width; below 2^32 elements.
struct TensorPair {
  ByteSpan base;
  ByteSpan now;
  uint32_t width = 2;                 // bytes an element: 1, 2, 4 or 8
  uint64_t row = 1;                   // elements of a row (the last dimension); only coo looks at it
  std::span<const uint32_t> changed;  // positions of all elements that differ, ascending
};

// A method. Objects keep contexts and scratch memory from call to call, as a long-lived sender or receiver
// does; one thread each. For measurements only: Apply trusts its bytes to be what Encode wrote.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string_view name() const = 0;
  // Replaces `out`.
  virtual void Encode(const TensorPair& pair, Bytes& out) = 0;
  // bits: the base, becomes `now`.
  virtual void Apply(ByteSpan bytes, uint32_t width, uint64_t row, MutableByteSpan bits) = 0;
};

// raw_i32         i32 positions, new values                     (verl, AReaL-DTE, vLLM patches)
// gap             u16 gaps (u32 where one is larger), new values  (TRL)
// gap_xor_zstd1   u16 gaps and old ^ new, each zstd-1           (NeMo-RL)
// gap_value_zstd1 u16 gaps and new values, each zstd-1          (PULSE)
// coo_zstd1       row differences, columns, new values, all in one zstd-1 (grail)
// full_xor_zstd1  old ^ new over the whole tensor, zstd-1       (slime, xor; SkyRL)
// overwrite_zstd1 u32 byte positions, new bytes, zstd-1         (slime, overwrite)
// whole           the new tensor
// whole_zstd3     the new tensor, zstd-3
// patch_from      the new tensor, zstd-3 with the base as its prefix and long-distance matching
//                 (zstd --patch-from)
std::vector<std::unique_ptr<Peer>> AllPeers();

}  // namespace deltawire::bench
