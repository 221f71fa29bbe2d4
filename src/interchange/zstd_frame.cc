#include "interchange/zstd_frame.h"

#include <zstd.h>

#include <algorithm>
#include <memory>

namespace deltawire::interchange {
namespace {

constexpr uint64_t kFirstPiece = 1 << 20;

Result<Bytes> DecompressUnsized(ByteSpan frame, uint64_t most_bytes) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  if (context == nullptr) return Fail(Code::kInternal, "zstd: no memory for a context");
  Bytes out;
  ZSTD_inBuffer in{frame.data(), frame.size(), 0};
  for (;;) {
    const uint64_t done = out.size();
    if (done == most_bytes) {
      // Nothing more may come: one byte of room tells whether something does.
      uint8_t extra = 0;
      ZSTD_outBuffer room{&extra, 1, 0};
      const size_t left = ZSTD_decompressStream(context.get(), &room, &in);
      if (left == 0 && room.pos == 0) return out;
      return Fail(Code::kCorrupt, "zstd frame: content of more than the {} bytes expected, or damaged",
                  most_bytes);
    }
    out.resize(std::min(most_bytes, std::max(kFirstPiece, 2 * done)));
    ZSTD_outBuffer piece{out.data() + done, out.size() - done, 0};
    const size_t left = ZSTD_decompressStream(context.get(), &piece, &in);
    out.resize(done + piece.pos);
    if (ZSTD_isError(left)) return Fail(Code::kCorrupt, "zstd frame: {}", ZSTD_getErrorName(left));
    if (left == 0) return out;
    if (in.pos == in.size && piece.pos < piece.size) return Fail(Code::kCorrupt, "zstd frame: cut short");
  }
}

}  // namespace

Result<Bytes> CompressFrame(ByteSpan content, int level) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  if (context == nullptr) return Fail(Code::kInternal, "zstd: no memory for a context");
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  Bytes out(ZSTD_compressBound(content.size()));
  const size_t size = ZSTD_compress2(context.get(), out.data(), out.size(), content.data(), content.size());
  if (ZSTD_isError(size)) return Fail(Code::kInternal, "zstd: {}", ZSTD_getErrorName(size));
  out.resize(size);
  out.shrink_to_fit();
  return out;
}

Result<Bytes> DecompressFrame(ByteSpan frame, uint64_t most_bytes) {
  const size_t length = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(length)) return Fail(Code::kCorrupt, "zstd frame: {}", ZSTD_getErrorName(length));
  if (length != frame.size()) {
    return Fail(Code::kCorrupt, "zstd frame: it ends after {} of {} bytes", length, frame.size());
  }
  const unsigned long long declared = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (declared == ZSTD_CONTENTSIZE_ERROR) return Fail(Code::kCorrupt, "zstd frame: its header is damaged");
  if (declared == ZSTD_CONTENTSIZE_UNKNOWN) return DecompressUnsized(frame, most_bytes);
  if (declared > most_bytes) {
    return Fail(Code::kCorrupt, "zstd frame: content of {} bytes, expected at most {}", declared, most_bytes);
  }
  Bytes out(declared);
  const size_t size = ZSTD_decompress(out.data(), out.size(), frame.data(), frame.size());
  if (ZSTD_isError(size)) return Fail(Code::kCorrupt, "zstd frame: {}", ZSTD_getErrorName(size));
  if (size != declared) {
    return Fail(Code::kCorrupt, "zstd frame: content of {} bytes, its header says {}", size, declared);
  }
  return out;
}

}  // namespace deltawire::interchange
