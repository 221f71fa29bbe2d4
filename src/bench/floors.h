// What the machine can do at best: the loops that figures are compared with.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/parallel.h"

namespace deltawire::bench {

// One way to read memory. The arrays run in lock step, or one after the other with each cut into `streams`
// pieces that run in lock step; `ahead` bytes are prefetched (0: left to the processor).
struct ReadPlan {
  bool lock_step = false;
  int streams = 1;
  uint32_t ahead = 0;
};

// Reads arrays of equal size once, with the widest loads of this processor.
class ReadFloor {
 public:
  // Tries every plan on these arrays with this many threads and keeps the fastest.
  ReadFloor(std::vector<ByteSpan> arrays, const Parallel& parallel);

  void Run() const { Read(plan_); }
  uint64_t bytes() const;

 private:
  void Read(const ReadPlan& plan) const;

  std::vector<ByteSpan> arrays_;
  Parallel parallel_;
  ReadPlan plan_;
  mutable std::atomic<uint64_t> sink_{0};  // results go here, so that no compiler drops the loads
};

// Writes to[positions[i]] = bits[i] for every i, nothing else; several prefetch distances are tried.
class ScatterFloor {
 public:
  // positions ascend inside each part; threads share the parts.
  struct Part {
    uint16_t* to;
    std::span<const uint32_t> positions;
    const uint16_t* bits;
  };
  ScatterFloor(std::vector<Part> parts, const Parallel& parallel);

  void Run() const { Scatter(ahead_); }

 private:
  void Scatter(uint32_t ahead) const;

  std::vector<Part> parts_;
  Parallel parallel_;
  uint32_t ahead_ = 0;
};

}  // namespace deltawire::bench
