// Content hashes (XXH3, accidents) and SHA-256 (what manifests pin). Thin owners of the libraries' states.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/bytes.h"

namespace deltawire {

// XXH3-64, seed 0; and of pieces as if they followed each other.
uint64_t Xxh3_64(ByteSpan bytes);
uint64_t Xxh3_64OfPieces(std::span<const ByteSpan> pieces);

// XXH3-128, seed 0, in canonical (big-endian) byte order, as `xxhsum -H2` prints it.
using Hash128 = std::array<uint8_t, 16>;
Hash128 Xxh3_128(ByteSpan bytes);

// Streaming XXH3-128. Finish() may be called once.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;
  void Update(ByteSpan bytes);
  Hash128 Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

using Sha256Digest = std::array<uint8_t, 32>;
Sha256Digest Sha256(ByteSpan bytes);

// Streaming SHA-256. Finish() may be called once.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(Sha256Stream&&) noexcept;
  Sha256Stream& operator=(Sha256Stream&&) noexcept;
  void Update(ByteSpan bytes);
  Sha256Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltawire
