#include "base/rng.h"

#include <sys/random.h>

namespace deltawire {

std::string Rng::HexId(int digits) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  uint64_t bits = 0;
  for (int i = 0; i < digits; ++i) {
    if (i % 16 == 0) bits = Next();
    out.push_back(kDigits[bits & 15]);
    bits >>= 4;
  }
  return out;
}

namespace {

class KernelRng final : public Rng {
 public:
  uint64_t Next() override {
    uint64_t value = 0;
    while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
    }
    return value;
  }
};

}  // namespace

Rng& SystemRng() {
  static KernelRng rng;  // stateless
  return rng;
}

uint64_t SeededRng::Next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace deltawire
