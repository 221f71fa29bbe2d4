// One block of a live tensor, on whatever device and with whatever strides: the only place that turns a box
// into runs of memory and picks the kernels for them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "device/backends.h"
#include "tensor/digest.h"
#include "tensor/shape.h"
#include "tensor/tensor_view.h"

namespace deltawire::device {

// Results of a guarded inversion over a block (kernels::Inverted, as vectors).
struct Inversion {
  std::vector<uint32_t> changed;
  std::vector<uint16_t> changed_old;
  std::vector<uint32_t> uncertain;
  std::vector<uint16_t> uncertain_low;
  std::vector<uint8_t> uncertain_span;
};

// Positions are row-major inside the box; bits are served bits, served_width() bytes each, on the host.
// A Block borrows its arguments: they outlive it. Cheap to build; one thread.
class Block {
 public:
  // box lies inside view.shape and holds at most kMaxBlockElements; key: DigestKey(canonical name).
  Block(const Backends& backends, const TensorView& view, const Box& box, kernels::Cast cast, uint64_t key);

  uint32_t elements() const { return elements_; }
  uint32_t served_width() const { return kernels::ServedBytes(cast_); }

  Digest DigestNow() const;
  // What DigestNow would be if the block held these served bits (host, elements() * served_width() bytes).
  Digest DigestOf(ByteSpan bits) const;
  // out: elements() * served_width() bytes.
  void Read(MutableByteSpan out) const;
  // Dense served bits into memory of the same device, at byte `offset`.
  void CopyTo(const Memory& to, uint64_t offset) const;
  // Where the block's stored elements begin in their memory, if they follow each other without gaps.
  std::optional<uint64_t> dense_at() const;
  // The block's served bits where they stand, valid while nothing writes there: in host memory, stored as
  // served, without gaps. Empty where they don't.
  ByteSpan HostBits() const;
  // Against dense served bits in memory of the same device: appends positions, old and new bits.
  void Compare(const Memory& old, uint64_t offset, std::vector<uint32_t>& positions, Bytes& old_bits,
               Bytes& new_bits) const;
  // positions ascend. out: positions.size() * served_width() bytes.
  void Gather(std::span<const uint32_t> positions, MutableByteSpan out) const;
  // Positions in set Z (kernels.h) with their bits; BF16 served.
  void SelectSmall(std::vector<uint32_t>& positions, std::vector<uint16_t>& bits) const;
  // Undoes one AdamW step whose moments are m and v (F32 or BF16 each, the tensor's shape and device; the
  // band is one for these dtypes). Serving BF16 from F32. digest receives DigestNow(); null where it is not
  // wanted.
  Inversion InvertAdamw(const TensorView& m, const TensorView& v, const kernels::AdamwBand& band,
                        Digest* digest) const;
  // Undoes one SGD step (kernels/sgd_band.h says what x and y are; F32, the tensor's shape and device). y may
  // be null.
  Inversion InvertSgd(const TensorView& x, const TensorView* y, const kernels::SgdBand& band,
                      Digest* digest) const;

  // What changing these positions adds to the digest. positions ascend.
  Digest DigestOfChange(std::span<const uint32_t> positions, ByteSpan old_bits, ByteSpan new_bits) const;

  // Only where stored and served bits are the same (a receiver's tensors). positions ascend.
  void Scatter(std::span<const uint32_t> positions, ByteSpan bits) const;
  void Write(ByteSpan bits) const;

 private:
  struct Run {
    uint64_t memory_byte;  // of its first element, relative to Memory::handle()
    uint64_t canonical;    // canonical element index of its first element
    uint32_t position;     // block position of its first element
  };
  // Calls f(Run) for each run of run_length_ elements, in position order.
  template <class F>
  void ForEachRun(F&& f) const;
  // Calls f(Run, first, count): the positions[first, first + count) that fall into each run.
  template <class F>
  void ForEachRunOf(std::span<const uint32_t> positions, F&& f) const;
  // The kernel call of InvertAdamw or InvertSgd on consecutive elements of theta and two states.
  using InvertRun = void(const kernels::Table& table, kernels::Source theta, kernels::Source first,
                         kernels::Source second, uint32_t n, uint64_t canonical, uint64_t key,
                         uint64_t lanes[2], kernels::Inverted* out);
  // second: null where the step has one state.
  Inversion Invert(const TensorView& first, const TensorView* second,
                   const std::function<InvertRun>& invert_run, Digest* digest) const;

  const kernels::Table& table_;
  const kernels::HostTable& host_ops_;
  const Backends& backends_;
  const TensorView& view_;
  const Box& box_;
  kernels::Cast cast_;
  uint64_t key_;
  uint32_t elements_;
  uint32_t run_length_;
  int64_t run_stride_;  // in stored elements
  // Dimensions outside a run: extent, canonical stride, memory stride (elements), outermost first.
  struct Outer {
    uint64_t extent;
    uint64_t canonical_stride;
    int64_t memory_stride;
  };
  std::vector<Outer> outer_;
  uint64_t first_memory_byte_;
  uint64_t first_canonical_;
};

}  // namespace deltawire::device
