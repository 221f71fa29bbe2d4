// The additive state digest as a value. The arithmetic that fills it is in kernels (design: "State digest").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace deltawire {

// Sum of what a set of elements contributes. Digests of disjoint sets add up; a change adds new - old.
struct Digest {
  uint64_t lanes[2] = {0, 0};

  Digest& operator+=(const Digest& other) {
    lanes[0] += other.lanes[0];
    lanes[1] += other.lanes[1];
    return *this;
  }
  Digest& operator-=(const Digest& other) {
    lanes[0] -= other.lanes[0];
    lanes[1] -= other.lanes[1];
    return *this;
  }
  friend Digest operator+(Digest a, const Digest& b) { return a += b; }
  friend Digest operator-(Digest a, const Digest& b) { return a -= b; }
  friend bool operator==(const Digest&, const Digest&) = default;

  // 32 lower-case hexadecimal digits, lane 0 first.
  std::string Hex() const;
  static std::optional<Digest> FromHex(std::string_view text);
};

// s of the digest's definition: XXH3-64 (seed 0) of the canonical name.
uint64_t DigestKey(std::string_view canonical_name);

}  // namespace deltawire
