#include "format/digests.h"

#include <string_view>

#include "format/binary.h"
#include "format/other_version.h"

namespace deltawire::format {
namespace {

// Byte format: 4 bytes magic, u32 version, u64 count, then 16 bytes a digest.
constexpr std::string_view kMagic = "DWDT";
constexpr uint64_t kHeaderBytes = 16;
constexpr uint64_t kDigestBytes = 16;

}  // namespace

Bytes DigestTableBytes(std::span<const Digest> digests) {
  Bytes out(kMagic.begin(), kMagic.end());
  out.reserve(kHeaderBytes + kDigestBytes * digests.size());
  AppendLe(kDigestTableVersion, out);
  AppendLe<uint64_t>(digests.size(), out);
  for (const Digest& digest : digests) AppendDigest(digest, out);
  return out;
}

Result<std::vector<Digest>> ParseDigestTable(ByteSpan bytes, uint64_t tensors) {
  BinaryReader reader(bytes, "digest table");
  DELTAWIRE_ASSIGN(const ByteSpan magic, reader.Take(kMagic.size(), "magic"));
  if (AsText(magic) != kMagic) {
    return Fail(Code::kCorrupt, "digest table: begins with {}, expected \"{}\"", ToHex(magic), kMagic);
  }
  DELTAWIRE_ASSIGN(const uint32_t version, reader.U32("version"));
  if (version != kDigestTableVersion) return Fail(OtherVersion("digest table", version, kDigestTableVersion));
  DELTAWIRE_ASSIGN(const uint64_t count, reader.U64("count"));
  if (count != tensors) {
    return Fail(Code::kCorrupt, "digest table: {} digests, the inventory has {} tensors", count, tensors);
  }
  if (count != reader.remaining() / kDigestBytes || reader.remaining() % kDigestBytes != 0) {
    return Fail(Code::kCorrupt, "digest table: {} bytes for {} digests, expected {}", bytes.size(), count,
                kHeaderBytes + kDigestBytes * count);
  }
  std::vector<Digest> digests(count);
  for (Digest& digest : digests) {
    DELTAWIRE_ASSIGN(digest, reader.ReadDigest("digest"));
  }
  return digests;
}

}  // namespace deltawire::format
