#include "bench/entropy_floor.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include "codec/ordinal.h"

namespace deltawire::bench {
namespace {

// Nats of a sequence with these counts under a Dirichlet(1/2, ..., 1/2) prior over all symbols.
template <size_t kCount>
double KtNats(const std::array<uint64_t, kCount>& counts) {
  double total = 0;
  double nats = 0;
  for (const uint64_t count : counts) {
    total += static_cast<double>(count);
    nats -= std::lgamma(static_cast<double>(count) + 0.5) - std::lgamma(0.5);
  }
  return nats + std::lgamma(total + kCount / 2.0) - std::lgamma(kCount / 2.0);
}

}  // namespace

void EntropyFloor::Add(ByteSpan base, ByteSpan now) {
  for (size_t at = 0; at + 2 <= base.size(); at += 2) {
    const auto old = LoadLe<uint16_t>(base.data() + at);
    const auto next = LoadLe<uint16_t>(now.data() + at);
    Class& in = classes_[old >> 7 & 0xFF];
    ++in.elements;
    if (old == next) continue;
    ++in.changed;
    const int step = static_cast<int16_t>(codec::Ordinal(next)) - static_cast<int16_t>(codec::Ordinal(old));
    const auto size = static_cast<uint32_t>(std::abs(step));
    const uint32_t negative = step < 0 ? 1 : 0;
    const auto length = static_cast<uint32_t>(std::bit_width(size));
    if (size <= 8) {
      ++in.steps[2 * (size - 1) + negative];
    } else {
      ++in.steps[16 + 2 * (length - 4) + negative];
      in.raw_bits += length - 1;
    }
  }
}

double EntropyFloor::bytes() const {
  double nats = 0;
  double bits = 0;
  for (const Class& in : classes_) {
    nats += KtNats(std::array<uint64_t, 2>{in.changed, in.elements - in.changed});
    nats += KtNats(in.steps);
    bits += static_cast<double>(in.raw_bits);
  }
  return (nats / std::numbers::ln2 + bits) / 8;
}

}  // namespace deltawire::bench
