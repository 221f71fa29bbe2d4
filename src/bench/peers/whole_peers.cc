#include "bench/peers/whole_peers.h"

#include <cstring>

#include "bench/peers/sections.h"
#include "bench/peers/zstd_context.h"

namespace deltawire::bench {
namespace {

// to = a ^ b, eight bytes at a time (compilers make it wider).
void XorInto(ByteSpan a, ByteSpan b, uint8_t* to) {
  size_t i = 0;
  for (; i + 8 <= a.size(); i += 8) {
    StoreLe(LoadLe<uint64_t>(a.data() + i) ^ LoadLe<uint64_t>(b.data() + i), to + i);
  }
  for (; i < a.size(); ++i) to[i] = a[i] ^ b[i];
}

class FullXorZstd final : public Peer {
 public:
  std::string_view name() const override { return "full_xor_zstd1"; }
  void Encode(const TensorPair& pair, Bytes& out) override {
    plain_.resize(pair.base.size());
    XorInto(pair.base, pair.now, plain_.data());
    out.clear();
    zstd_.Compress(plain_, 1, out);
  }
  void Apply(ByteSpan bytes, uint32_t, uint64_t, MutableByteSpan bits) override {
    plain_.resize(bits.size());
    zstd_.Decompress(bytes, plain_);
    XorInto(bits, plain_, bits.data());
  }

 private:
  ZstdContext zstd_;
  Bytes plain_;
};

class OverwriteZstd final : public Peer {
 public:
  std::string_view name() const override { return "overwrite_zstd1"; }
  void Encode(const TensorPair& pair, Bytes& out) override {
    plain_.resize(4);
    values_.clear();
    for (const uint32_t position : pair.changed) {
      const uint64_t begin = uint64_t{position} * pair.width;
      for (uint64_t at = begin; at < begin + pair.width; ++at) {
        if (pair.base[at] == pair.now[at]) continue;
        AppendLe(static_cast<uint32_t>(at), plain_);
        values_.push_back(pair.now[at]);
      }
    }
    StoreLe(static_cast<uint32_t>(values_.size()), plain_.data());
    plain_.insert(plain_.end(), values_.begin(), values_.end());
    out.clear();
    zstd_.Compress(plain_, 1, out);
  }
  void Apply(ByteSpan bytes, uint32_t, uint64_t, MutableByteSpan bits) override {
    plain_.resize(ZstdContext::ContentSize(bytes));
    zstd_.Decompress(bytes, plain_);
    const uint64_t count = LoadLe<uint32_t>(plain_.data());
    const uint8_t* positions = plain_.data() + 4;
    const uint8_t* values = positions + 4 * count;
    for (uint64_t i = 0; i < count; ++i) bits[LoadLe<uint32_t>(positions + 4 * i)] = values[i];
  }

 private:
  ZstdContext zstd_;
  Bytes plain_;
  Bytes values_;
};

class Whole final : public Peer {
 public:
  std::string_view name() const override { return "whole"; }
  void Encode(const TensorPair& pair, Bytes& out) override { out.assign(pair.now.begin(), pair.now.end()); }
  void Apply(ByteSpan bytes, uint32_t, uint64_t, MutableByteSpan bits) override {
    if (!bits.empty()) std::memcpy(bits.data(), bytes.data(), bits.size());
  }
};

class WholeZstd final : public Peer {
 public:
  std::string_view name() const override { return "whole_zstd3"; }
  void Encode(const TensorPair& pair, Bytes& out) override {
    out.clear();
    zstd_.Compress(pair.now, 3, out);
  }
  void Apply(ByteSpan bytes, uint32_t, uint64_t, MutableByteSpan bits) override {
    zstd_.Decompress(bytes, bits);
  }

 private:
  ZstdContext zstd_;
};

class PatchFrom final : public Peer {
 public:
  std::string_view name() const override { return "patch_from"; }
  void Encode(const TensorPair& pair, Bytes& out) override {
    out.clear();
    zstd_.Compress(pair.now, 3, out, pair.base);
  }
  // The base is the decoder's prefix until the end: the result goes through memory of its own.
  void Apply(ByteSpan bytes, uint32_t, uint64_t, MutableByteSpan bits) override {
    plain_.resize(bits.size());
    zstd_.Decompress(bytes, plain_, bits);
    if (!bits.empty()) std::memcpy(bits.data(), plain_.data(), bits.size());
  }

 private:
  ZstdContext zstd_;
  Bytes plain_;
};

}  // namespace

std::unique_ptr<Peer> FullXorZstdPeer() { return std::make_unique<FullXorZstd>(); }
std::unique_ptr<Peer> OverwriteZstdPeer() { return std::make_unique<OverwriteZstd>(); }
std::unique_ptr<Peer> WholePeer() { return std::make_unique<Whole>(); }
std::unique_ptr<Peer> WholeZstdPeer() { return std::make_unique<WholeZstd>(); }
std::unique_ptr<Peer> PatchFromPeer() { return std::make_unique<PatchFrom>(); }

}  // namespace deltawire::bench
