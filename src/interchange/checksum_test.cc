#include "interchange/checksum.h"

#include <gtest/gtest.h>

namespace deltawire::interchange {
namespace {

// The new bytes of the vector in docs/interchange.md: 3f80 3f82 8000 8000.
const Bytes kNew = {0x80, 0x3F, 0x82, 0x3F, 0x00, 0x80, 0x00, 0x80};

TEST(Checksum, AsOthersComputeIt) {
  EXPECT_EQ(ChecksumHex(Checksum::kXxh3, {}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ChecksumHex(Checksum::kXxh3, kNew), "f140f702380ea3e4b901980456b017d7");
  EXPECT_EQ(ChecksumHex(Checksum::kAdler32, kNew), "0c080281");
  EXPECT_EQ(ChecksumHex(Checksum::kAdler32, Bytes()), "00000001");
}

// The input of BLAKE3's published test vectors: bytes 0, 1, ... 250, 0, 1, ...
Bytes Counting(size_t size) {
  Bytes out(size);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<uint8_t>(i % 251);
  return out;
}

TEST(Checksum, Blake3OfThePublishedVectors) {
  const auto hex = [](size_t size) { return ChecksumHex(Checksum::kBlake3, Counting(size)); };
  EXPECT_EQ(hex(0), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
  EXPECT_EQ(hex(1), "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213");
  EXPECT_EQ(hex(63), "e9bc37a594daad83be9470df7f7b3798297c3d834ce80ba85d6e207627b7db7b");
  EXPECT_EQ(hex(64), "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98");
  EXPECT_EQ(hex(65), "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee");
  EXPECT_EQ(hex(1023), "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11");
  EXPECT_EQ(hex(1024), "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7");
  EXPECT_EQ(hex(1025), "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444");
  EXPECT_EQ(hex(2048), "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a");
  EXPECT_EQ(hex(2049), "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030");
  EXPECT_EQ(hex(3072), "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2");
  EXPECT_EQ(hex(3073), "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3");
  EXPECT_EQ(hex(4096), "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969");
  EXPECT_EQ(hex(5120), "9cadc15fed8b5d854562b26a9536d9707cadeda9b143978f319ab34230535833");
  EXPECT_EQ(hex(6144), "3e2e5b74e048f3add6d21faab3f83aa44d3b2278afb83b80b3c35164ebeca205");
  EXPECT_EQ(hex(8192), "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63");
  EXPECT_EQ(hex(8193), "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b");
  EXPECT_EQ(hex(16384), "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4");
  EXPECT_EQ(hex(31744), "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47");
  EXPECT_EQ(hex(102400), "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085");
}

TEST(Checksum, Names) {
  for (const auto checksum : {Checksum::kXxh3, Checksum::kBlake3, Checksum::kAdler32}) {
    EXPECT_EQ(ChecksumFromName(ChecksumName(checksum)), checksum);
  }
  EXPECT_EQ(ChecksumFromName("XXH3-128"), std::nullopt);
  EXPECT_EQ(ChecksumFromName(""), std::nullopt);
}

}  // namespace
}  // namespace deltawire::interchange
