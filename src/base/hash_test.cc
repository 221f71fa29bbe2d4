#include "base/hash.h"

#include <gtest/gtest.h>

namespace deltawire {
namespace {

TEST(Hash, PublishedVectors) {
  EXPECT_EQ(ToHex(Xxh3_128({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ToHex(Sha256(AsBytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Hash, StreamsEqualOneCall) {
  const Bytes bytes(1000, 7);
  Xxh3Stream xxh;
  Sha256Stream sha;
  for (size_t at = 0; at < bytes.size(); at += 100) {
    xxh.Update(ByteSpan(bytes).subspan(at, 100));
    sha.Update(ByteSpan(bytes).subspan(at, 100));
  }
  EXPECT_EQ(xxh.Finish(), Xxh3_128(bytes));
  EXPECT_EQ(sha.Finish(), Sha256(bytes));
  const ByteSpan pieces[] = {ByteSpan(bytes).first(3), {}, ByteSpan(bytes).subspan(3)};
  EXPECT_EQ(Xxh3_64OfPieces(pieces), Xxh3_64(bytes));
  EXPECT_EQ(Xxh3_64OfPieces({}), Xxh3_64(ByteSpan()));
}

}  // namespace
}  // namespace deltawire
