// Random identifiers and reproducible random numbers, passed in like the clock.
#pragma once

#include <cstdint>
#include <string>

namespace deltawire {

class Rng {
 public:
  virtual ~Rng() = default;
  virtual uint64_t Next() = 0;
  // Lower-case hexadecimal, `digits` long.
  std::string HexId(int digits);
};

// The kernel's entropy; thread-safe. For run, writer and attempt ids.
Rng& SystemRng();

// splitmix64 from a printed seed. For tests, generators and fault injection; one thread.
class SeededRng final : public Rng {
 public:
  explicit SeededRng(uint64_t seed) : state_(seed) {}
  uint64_t Next() override;

 private:
  uint64_t state_;
};

}  // namespace deltawire
