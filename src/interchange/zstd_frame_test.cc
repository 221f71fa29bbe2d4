#include "interchange/zstd_frame.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include "base/rng.h"

namespace deltawire::interchange {
namespace {

Bytes Content(size_t size) {
  SeededRng rng(7);
  Bytes out(size);
  for (auto& byte : out) byte = rng.Next() % 8 == 0 ? static_cast<uint8_t>(rng.Next()) : 0;
  return out;
}

// A frame that doesn't say how long its content is, as stream compressors write it.
Bytes Unsized(const Bytes& content) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  Bytes out(ZSTD_compressBound(content.size()));
  out.resize(ZSTD_compress2(context, out.data(), out.size(), content.data(), content.size()));
  ZSTD_freeCCtx(context);
  return out;
}

TEST(ZstdFrame, RoundTrip) {
  for (const size_t size : {0, 1, 1000, 3'000'000}) {
    const Bytes content = Content(size);
    for (const Bytes& frame : {CompressFrame(content, 1).value(), Unsized(content)}) {
      EXPECT_EQ(DecompressFrame(frame, size).value(), content);
      EXPECT_EQ(DecompressFrame(frame, size + 100).value(), content);
      if (size == 0) continue;
      EXPECT_EQ(DecompressFrame(frame, size - 1).error().code(), Code::kCorrupt) << size;
    }
  }
}

TEST(ZstdFrame, ABombIsRefusedWhateverItDeclares) {
  const Bytes zeros(64 << 20);
  for (const Bytes& frame : {CompressFrame(zeros, 1).value(), Unsized(zeros)}) {
    EXPECT_LT(frame.size(), 10'000u);
    EXPECT_EQ(DecompressFrame(frame, 1000).error().code(), Code::kCorrupt);
  }
  // Declares 2^62 bytes: must not be allocated even where as much is allowed to come.
  const Bytes declared = {0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0, 0, 0, 0, 0, 0, 0x40, 1, 0, 0};
  EXPECT_FALSE(DecompressFrame(declared, 1 << 20));
}

TEST(ZstdFrame, EveryTruncationTrailingBytesAndSecondFramesAreErrors) {
  for (const Bytes& frame : {CompressFrame(Content(5000), 1).value(), Unsized(Content(5000))}) {
    for (size_t size = 0; size < frame.size(); ++size) {
      EXPECT_FALSE(DecompressFrame(ByteSpan(frame).first(size), 5000)) << size;
    }
    Bytes longer = frame;
    longer.push_back(0);
    EXPECT_FALSE(DecompressFrame(longer, 100'000));
    longer.pop_back();
    longer.insert(longer.end(), frame.begin(), frame.end());
    EXPECT_FALSE(DecompressFrame(longer, 100'000));
  }
}

}  // namespace
}  // namespace deltawire::interchange
