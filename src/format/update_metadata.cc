#include "format/update_metadata.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/hash.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

constexpr std::string_view kNone = "none";
constexpr std::string_view kMoreBases = "more_bases";

// Reads texts of the metadata; errors name the key.
class MetadataReader {
 public:
  MetadataReader(const Metadata& metadata, std::string_view prefix) : metadata_(metadata), prefix_(prefix) {}

  Result<std::string> Text(std::string_view key) const {
    const auto found = metadata_.find(std::string(prefix_) + std::string(key));
    if (found == metadata_.end())
      return Fail(Code::kCorrupt, "update: metadata has no \"{}{}\"", prefix_, key);
    return found->second;
  }
  Result<uint64_t> Number(std::string_view key) const {
    DELTAWIRE_ASSIGN(const std::string text, Text(key));
    const auto number = DecimalFromText(text);
    if (!number)
      return Fail(Code::kCorrupt, "update: {} is {}, expected a decimal number", key, Quoted(text));
    return *number;
  }
  Result<Digest> StateDigest(std::string_view key) const {
    DELTAWIRE_ASSIGN(const std::string text, Text(key));
    return DigestFrom(key, text);
  }
  // Digests with a space between them; none if there is no such key.
  Result<std::vector<Digest>> MoreBases() const {
    std::vector<Digest> bases;
    const auto found = metadata_.find(std::string(prefix_) + std::string(kMoreBases));
    if (found == metadata_.end()) return bases;
    std::string_view left = found->second;
    while (true) {
      const size_t end = std::min(left.find(' '), left.size());
      DELTAWIRE_ASSIGN(bases.emplace_back(), DigestFrom(kMoreBases, left.substr(0, end)));
      if (end == left.size()) return bases;
      left.remove_prefix(end + 1);
    }
  }

 private:
  static Result<Digest> DigestFrom(std::string_view key, std::string_view text) {
    const auto digest = IsLowerHex(text, 32) ? Digest::FromHex(text) : std::nullopt;
    if (!digest) {
      return Fail(Code::kCorrupt, "update: {} is {}, expected 32 hexadecimal digits", key, Quoted(text));
    }
    return *digest;
  }

  const Metadata& metadata_;
  std::string_view prefix_;
};

}  // namespace

bool StartsFrom(const UpdateHeader& header, const Digest& state) {
  return !header.base_digest || state == *header.base_digest ||
         std::find(header.more_bases.begin(), header.more_bases.end(), state) != header.more_bases.end();
}

Status CheckUpdateHeader(const UpdateHeader& header, Code code) {
  if (!IsRunName(header.run)) {
    return Fail(code, "update: run {} is not 1 to 256 bytes of UTF-8 without control characters",
                Quoted(header.run));
  }
  if (!IsIdentifier(header.writer)) {
    return Fail(code, "update: writer {} is not 1 to 64 letters, digits, _ or -", Quoted(header.writer));
  }
  if (!IsLowerHex(header.inventory, 64)) {
    return Fail(code, "update: inventory {} is not 64 hexadecimal digits", Quoted(header.inventory));
  }
  if (header.more_bases.size() > kMostMoreBases) {
    return Fail(code, "update: {} more_bases, at most {} fit", header.more_bases.size(), kMostMoreBases);
  }
  for (size_t i = 0; i < header.more_bases.size(); ++i) {
    const auto at = header.more_bases.begin() + static_cast<std::ptrdiff_t>(i);
    if (header.base_digest && *at != *header.base_digest &&
        std::find(header.more_bases.begin(), at, *at) == at) {
      continue;
    }
    return Fail(code, "update: more_bases has {}, which is named twice or stands without a base_digest",
                header.more_bases[i].Hex());
  }
  if (header.base && *header.base >= header.number) {
    return Fail(code, "update: number {} is not above its base {}", header.number, *header.base);
  }
  return {};
}

Metadata UpdateHeaderMetadata(const UpdateHeader& header, std::string_view prefix) {
  Metadata metadata;
  const auto add = [&](std::string_view key, std::string value) {
    metadata.emplace(std::string(prefix) + std::string(key), std::move(value));
  };
  add("run", header.run);
  add("number", fmt::format("{}", header.number));
  add("base", header.base ? fmt::format("{}", *header.base) : std::string(kNone));
  add("writer", header.writer);
  add("inventory", header.inventory);
  add("base_digest", header.base_digest ? header.base_digest->Hex() : std::string(kNone));
  if (!header.more_bases.empty()) {
    std::string more;
    for (const Digest& base : header.more_bases) {
      if (!more.empty()) more += ' ';
      more += base.Hex();
    }
    add(kMoreBases, std::move(more));
  }
  add("digest", header.digest.Hex());
  return metadata;
}

Result<UpdateHeader> UpdateHeaderFrom(const Metadata& metadata, std::string_view prefix) {
  const MetadataReader reader(metadata, prefix);
  UpdateHeader header;
  DELTAWIRE_ASSIGN(header.run, reader.Text("run"));
  DELTAWIRE_ASSIGN(header.number, reader.Number("number"));
  DELTAWIRE_ASSIGN(const std::string base, reader.Text("base"));
  if (base != kNone) {
    DELTAWIRE_ASSIGN(header.base, reader.Number("base"));
  }
  DELTAWIRE_ASSIGN(header.writer, reader.Text("writer"));
  DELTAWIRE_ASSIGN(header.inventory, reader.Text("inventory"));
  DELTAWIRE_ASSIGN(const std::string base_digest, reader.Text("base_digest"));
  if (base_digest != kNone) {
    DELTAWIRE_ASSIGN(header.base_digest, reader.StateDigest("base_digest"));
  }
  DELTAWIRE_ASSIGN(header.more_bases, reader.MoreBases());
  DELTAWIRE_ASSIGN(header.digest, reader.StateDigest("digest"));
  DELTAWIRE_TRY(CheckUpdateHeader(header, Code::kCorrupt));
  return header;
}

std::string UpdateContentHash(const Metadata& metadata, std::string_view content_key,
                              std::vector<SafetensorsEntry> entries, std::initializer_list<ByteSpan> data) {
  std::string text;
  const auto add = [&text](std::string_view part) {
    text += part;
    text += '\0';
  };
  for (const auto& [key, value] : metadata) {
    if (key == content_key) continue;
    add(key);
    add(value);
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const auto& entry : entries) {
    add(entry.name);
    add(DtypeName(entry.dtype));
    add(ShapeText(entry.shape));
    std::array<char, 16> range;
    StoreLe(entry.begin, range.data());
    StoreLe(entry.end, range.data() + 8);
    text.append(range.data(), range.size());
  }
  Xxh3Stream hash;
  hash.Update(AsBytes(text));
  for (const ByteSpan bytes : data) hash.Update(bytes);
  return ToHex(hash.Finish());
}

}  // namespace deltawire::format
