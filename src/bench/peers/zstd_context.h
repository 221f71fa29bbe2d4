// zstd contexts that live as long as their peer. Failure is a bug of the benchmark: it ends the program.
#pragma once

#include <zstd.h>

#include <cstdint>

#include "base/bytes.h"

namespace deltawire::bench {

class ZstdContext {
 public:
  ZstdContext();
  ~ZstdContext();
  ZstdContext(const ZstdContext&) = delete;
  ZstdContext& operator=(const ZstdContext&) = delete;

  // Appends one frame. prefix: bytes that the decoder has, too; with them long-distance matching is on and
  // the window reaches over all of both, as zstd --patch-from sets it.
  void Compress(ByteSpan content, int level, Bytes& out, ByteSpan prefix = {});
  // The frame's content to `out`, which has exactly its size.
  void Decompress(ByteSpan frame, MutableByteSpan out, ByteSpan prefix = {});
  static uint64_t ContentSize(ByteSpan frame);

 private:
  ZSTD_CCtx* compressor_;
  ZSTD_DCtx* decompressor_;
};

}  // namespace deltawire::bench
