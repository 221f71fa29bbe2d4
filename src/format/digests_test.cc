#include "format/digests.h"

#include <gtest/gtest.h>

namespace deltawire::format {
namespace {

// The example of docs/formats/inventory.md.
TEST(DigestTable, Example) {
  const std::vector<Digest> digests = {{{1, 2}}, {{0x04b63a2e5c743da2, 0x819b7c8077840008}}};
  const Bytes bytes = DigestTableBytes(digests);
  EXPECT_EQ(ToHex(bytes),
            "44574454"
            "01000000"
            "0200000000000000"
            "0100000000000000"
            "0200000000000000"
            "a23d745c2e3ab604"
            "08008477807c9b81");
  EXPECT_EQ(ParseDigestTable(bytes, 2), digests);
}

TEST(DigestTable, RefusesEveryOtherLength) {
  const Bytes bytes = DigestTableBytes(std::vector<Digest>(3));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseDigestTable(ByteSpan(bytes).first(size), 3)) << size;
  }
  Bytes longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(ParseDigestTable(longer, 3));
  EXPECT_FALSE(ParseDigestTable(bytes, 2));
  EXPECT_FALSE(ParseDigestTable(bytes, 4));
  EXPECT_TRUE(ParseDigestTable(DigestTableBytes({}), 0));
}

TEST(DigestTable, HugeCountAllocatesNothing) {
  Bytes bytes = DigestTableBytes(std::vector<Digest>(1));
  StoreLe<uint64_t>(UINT64_MAX / 16 + 2, bytes.data() + 8);
  EXPECT_EQ(ParseDigestTable(bytes, UINT64_MAX / 16 + 2).error().code(), Code::kCorrupt);
}

TEST(DigestTable, OtherVersionIsUnsupported) {
  Bytes bytes = DigestTableBytes({});
  bytes[4] = 2;
  EXPECT_EQ(ParseDigestTable(bytes, 0).error().code(), Code::kUnsupported);
  bytes[0] = 'X';
  EXPECT_EQ(ParseDigestTable(bytes, 0).error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace deltawire::format
