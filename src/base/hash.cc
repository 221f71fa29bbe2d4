#include "base/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

namespace deltawire {
namespace {

Hash128 Canonical(XXH128_hash_t value) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, value);
  Hash128 out;
  std::memcpy(out.data(), canonical.digest, out.size());
  return out;
}

}  // namespace

uint64_t Xxh3_64(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
uint64_t Xxh3_64OfPieces(std::span<const ByteSpan> pieces) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (const ByteSpan piece : pieces) XXH3_64bits_update(state.get(), piece.data(), piece.size());
  return XXH3_64bits_digest(state.get());
}
Hash128 Xxh3_128(ByteSpan bytes) { return Canonical(XXH3_128bits(bytes.data(), bytes.size())); }

struct Xxh3Stream::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() { XXH3_128bits_reset(xxh); }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;
void Xxh3Stream::Update(ByteSpan bytes) { XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()); }
Hash128 Xxh3Stream::Finish() { return Canonical(XXH3_128bits_digest(state_->xxh)); }

Sha256Digest Sha256(ByteSpan bytes) {
  Sha256Stream stream;
  stream.Update(bytes);
  return stream.Finish();
}

struct Sha256Stream::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() { EVP_DigestInit_ex(context, EVP_sha256(), nullptr); }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Sha256Stream::Sha256Stream() : state_(std::make_unique<State>()) {}
Sha256Stream::~Sha256Stream() = default;
Sha256Stream::Sha256Stream(Sha256Stream&&) noexcept = default;
Sha256Stream& Sha256Stream::operator=(Sha256Stream&&) noexcept = default;
void Sha256Stream::Update(ByteSpan bytes) { EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()); }
Sha256Digest Sha256Stream::Finish() {
  Sha256Digest out;
  unsigned size = 0;
  EVP_DigestFinal_ex(state_->context, out.data(), &size);
  return out;
}

}  // namespace deltawire
