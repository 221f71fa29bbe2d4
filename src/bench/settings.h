// What a run of the benchmark was asked for.
#pragma once

#include <cstdint>
#include <string>

namespace deltawire::bench {

struct Settings {
  uint64_t elements = uint64_t{1} << 26;  // of the synthetic tensors; a multiple of 2^20
  int threads = 1;                        // what "all threads" means
  int rounds = 9;                         // the best of so many counts
  std::string only;                       // one group of a suite; empty: all
  bool quick = false;                     // a small model for the end-to-end figures
  std::string data = "../shared/data";    // real versions (steady/v0011 and v0012)
  std::string scratch = "/dev/shm";       // where stores and patches are written; a tmpfs
};

}  // namespace deltawire::bench
