#include "bench/peers/zstd_context.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

namespace deltawire::bench {
namespace {

constexpr int kSmallestWindow = 10;

size_t Must(size_t result) {
  if (ZSTD_isError(result)) {
    std::fprintf(stderr, "zstd: %s\n", ZSTD_getErrorName(result));
    std::abort();
  }
  return result;
}

int LargestWindow(ZSTD_cParameter parameter) { return ZSTD_cParam_getBounds(parameter).upperBound; }

}  // namespace

ZstdContext::ZstdContext() : compressor_(ZSTD_createCCtx()), decompressor_(ZSTD_createDCtx()) {
  if (compressor_ == nullptr || decompressor_ == nullptr) std::abort();
}

ZstdContext::~ZstdContext() {
  ZSTD_freeCCtx(compressor_);
  ZSTD_freeDCtx(decompressor_);
}

void ZstdContext::Compress(ByteSpan content, int level, Bytes& out, ByteSpan prefix) {
  Must(ZSTD_CCtx_reset(compressor_, ZSTD_reset_session_and_parameters));
  Must(ZSTD_CCtx_setParameter(compressor_, ZSTD_c_compressionLevel, level));
  if (!prefix.empty()) {
    const int window = std::bit_width(prefix.size() + content.size());
    Must(ZSTD_CCtx_setParameter(compressor_, ZSTD_c_enableLongDistanceMatching, 1));
    Must(ZSTD_CCtx_setParameter(compressor_, ZSTD_c_windowLog,
                                std::clamp(window, kSmallestWindow, LargestWindow(ZSTD_c_windowLog))));
    Must(ZSTD_CCtx_refPrefix(compressor_, prefix.data(), prefix.size()));
  }
  const size_t at = out.size();
  out.resize(at + ZSTD_compressBound(content.size()));
  out.resize(at + Must(ZSTD_compress2(compressor_, out.data() + at, out.size() - at, content.data(),
                                      content.size())));
}

void ZstdContext::Decompress(ByteSpan frame, MutableByteSpan out, ByteSpan prefix) {
  Must(ZSTD_DCtx_reset(decompressor_, ZSTD_reset_session_and_parameters));
  if (!prefix.empty()) {
    Must(ZSTD_DCtx_setParameter(decompressor_, ZSTD_d_windowLogMax,
                                ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound));
    Must(ZSTD_DCtx_refPrefix(decompressor_, prefix.data(), prefix.size()));
  }
  if (Must(ZSTD_decompressDCtx(decompressor_, out.data(), out.size(), frame.data(), frame.size())) !=
      out.size()) {
    std::abort();
  }
}

uint64_t ZstdContext::ContentSize(ByteSpan frame) {
  return ZSTD_getFrameContentSize(frame.data(), frame.size());
}

}  // namespace deltawire::bench
