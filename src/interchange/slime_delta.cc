#include "interchange/slime_delta.h"

#include <algorithm>
#include <cstring>

#include "format/hf_index.h"
#include "format/json.h"
#include "format/text.h"
#include "interchange/zstd_frame.h"

namespace deltawire::interchange {
namespace {

using format::Quoted;

constexpr int kLevel = 1;  // as slime compresses
constexpr uint64_t kMaxStateBytes = 4096;
constexpr std::string_view kFolderPrefix = "weight_v";
constexpr std::string_view kCompression = "zstd";

Result<std::string> Text(const format::HfIndex& index, const std::string& key) {
  const auto found = index.metadata.find(key);
  if (found == index.metadata.end()) {
    return Fail(Code::kCorrupt, "slime index: metadata has no text \"{}\"", key);
  }
  return found->second;
}

Result<uint64_t> Version(const format::HfIndex& index, const std::string& key) {
  DELTAWIRE_ASSIGN(const std::string text, Text(index, key));
  const auto version = SlimeVersionFrom(text);
  if (!version) return Fail(Code::kCorrupt, "slime index: {} is {}, expected digits", key, Quoted(text));
  return *version;
}

// u32 count | u32 position x count | u8 byte x count.
Result<Bytes> Overwrites(ByteSpan base, ByteSpan now) {
  if (now.size() > uint64_t{UINT32_MAX}) {
    return Fail(Code::kUnsupported,
                "{} bytes: overwrite positions have 32 bits and would wrap; use the encoding xor",
                now.size());
  }
  Bytes out;
  Bytes values;
  AppendLe<uint32_t>(0, out);
  for (uint64_t i = 0; i < now.size(); ++i) {
    if (base[i] == now[i]) continue;
    AppendLe(static_cast<uint32_t>(i), out);
    values.push_back(now[i]);
  }
  StoreLe(static_cast<uint32_t>(values.size()), out.data());
  out.insert(out.end(), values.begin(), values.end());
  return out;
}

Status ApplyOverwrites(ByteSpan content, MutableByteSpan bits) {
  constexpr uint64_t kWord = 4;
  if (content.size() < kWord) {
    return Fail(Code::kCorrupt, "{} bytes of overwrites, expected at least the count's {}", content.size(),
                kWord);
  }
  const uint64_t count = LoadLe<uint32_t>(content.data());
  if (content.size() != kWord + count * (kWord + 1)) {
    return Fail(Code::kCorrupt, "{} bytes of overwrites, expected {} for {} entries", content.size(),
                kWord + count * (kWord + 1), count);
  }
  const uint8_t* values = content.data() + kWord + count * kWord;
  uint64_t next = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t position = LoadLe<uint32_t>(content.data() + kWord + i * kWord);
    if (position < next || position >= bits.size()) {
      return Fail(Code::kCorrupt, "overwrite {} goes to byte {}, expected {} to {}", i, position, next,
                  bits.size());
    }
    bits[position] = values[i];
    next = position + 1;
  }
  return {};
}

Status ApplyXor(ByteSpan content, MutableByteSpan bits) {
  if (content.size() != bits.size()) {
    return Fail(Code::kCorrupt, "{} bytes of differences, the base's tensor has {}", content.size(),
                bits.size());
  }
  for (size_t i = 0; i < bits.size(); ++i) bits[i] ^= content[i];
  return {};
}

Status Apply(SlimeEncoding encoding, ByteSpan frame, MutableByteSpan bits) {
  if (encoding == SlimeEncoding::kXor) {
    DELTAWIRE_ASSIGN(const Bytes content, DecompressFrame(frame, bits.size()));
    return ApplyXor(content, bits);
  }
  const auto most = CheckedMul(bits.size(), 5);
  DELTAWIRE_ASSIGN(const Bytes content, DecompressFrame(frame, CheckedAdd(most.value_or(0), 4).value_or(0)));
  return ApplyOverwrites(content, bits);
}

}  // namespace

std::string_view SlimeEncodingName(SlimeEncoding encoding) {
  return encoding == SlimeEncoding::kXor ? "xor" : "overwrite";
}

std::string SlimeVersionText(uint64_t version) { return fmt::format("{:06}", version); }

std::optional<uint64_t> SlimeVersionFrom(std::string_view text) {
  const size_t first = std::min(text.find_first_not_of('0'), text.size());
  const auto number = first == text.size() && !text.empty() ? std::optional<uint64_t>(0)
                                                            : format::DecimalFromText(text.substr(first));
  if (!number || *number > uint64_t{INT64_MAX}) return std::nullopt;
  return number;
}

std::optional<uint64_t> SlimeVersionFromFolder(std::string_view folder) {
  if (!folder.starts_with(kFolderPrefix)) return std::nullopt;
  return SlimeVersionFrom(folder.substr(kFolderPrefix.size()));
}

bool IsSlimeDelta(ByteSpan index) {
  const auto parsed = format::ParseHfIndex(index);
  return parsed && parsed->metadata.contains("delta_encoding");
}

Result<SlimeIndex> ParseSlimeIndex(ByteSpan text) {
  DELTAWIRE_ASSIGN(auto index, format::ParseHfIndex(text));
  SlimeIndex out;
  DELTAWIRE_ASSIGN(const std::string encoding, Text(index, "delta_encoding"));
  if (encoding == "xor") {
    out.encoding = SlimeEncoding::kXor;
  } else if (encoding == "overwrite") {
    out.encoding = SlimeEncoding::kOverwrite;
  } else {
    return Fail(Code::kUnsupported,
                "slime index: delta_encoding {}; this build reads \"xor\" and \"overwrite\"",
                Quoted(encoding));
  }
  DELTAWIRE_ASSIGN(const std::string compression, Text(index, "compression_format"));
  if (compression != kCompression) {
    return Fail(Code::kUnsupported, "slime index: compression_format {}; this build reads \"{}\"",
                Quoted(compression), kCompression);
  }
  DELTAWIRE_ASSIGN(const std::string checksum, Text(index, "checksum_format"));
  const auto known = ChecksumFromName(checksum);
  if (!known) {
    return Fail(Code::kUnsupported,
                "slime index: checksum_format {}; this build reads \"xxh3-128\", \"blake3\" and \"adler32\"",
                Quoted(checksum));
  }
  out.checksum = *known;
  DELTAWIRE_ASSIGN(out.version, Version(index, "version"));
  DELTAWIRE_ASSIGN(out.base_version, Version(index, "base_version"));
  if (out.version <= out.base_version) {
    return Fail(Code::kCorrupt, "slime index: version {} is not above its base {}", out.version,
                out.base_version);
  }
  out.files = std::move(index.weight_map);
  return out;
}

std::string SlimeIndexText(const SlimeIndex& index) {
  format::HfIndex out;
  out.weight_map = index.files;
  out.metadata = {{"version", SlimeVersionText(index.version)},
                  {"base_version", SlimeVersionText(index.base_version)},
                  {"delta_encoding", std::string(SlimeEncodingName(index.encoding))},
                  {"compression_format", std::string(kCompression)},
                  {"checksum_format", std::string(ChecksumName(index.checksum))}};
  return format::HfIndexText(out);
}

Result<std::vector<SlimeTensor>> ParseSlimeFile(ByteSpan file, Checksum checksum) {
  DELTAWIRE_ASSIGN(const auto container, format::ParseSafetensors(file, file.size()));
  const size_t digits = ChecksumHex(checksum, {}).size();
  std::vector<SlimeTensor> tensors;
  for (const auto& entry : container.entries) {
    if (entry.dtype != Dtype::kU8 || entry.shape.size() != 1) {
      return Fail(Code::kCorrupt, "slime data: tensor {} is {} {}, expected U8 with one dimension",
                  Quoted(entry.name), DtypeName(entry.dtype), ShapeText(entry.shape));
    }
    const auto found = container.metadata.find(entry.name);
    if (found == container.metadata.end() || !format::IsLowerHex(found->second, digits)) {
      return Fail(Code::kCorrupt,
                  "slime data: tensor {} has the {} checksum {}, expected {} hexadecimal digits",
                  Quoted(entry.name), ChecksumName(checksum),
                  found == container.metadata.end() ? "none" : Quoted(found->second), digits);
    }
    tensors.push_back({entry.name, file.subspan(container.data_offset + entry.begin, entry.end - entry.begin),
                       found->second});
  }
  return tensors;
}

Result<SlimeFile> BuildSlimeFile(const std::vector<SlimeTensor>& tensors) {
  std::map<std::string, std::string> metadata;
  std::map<std::string_view, ByteSpan> frames;
  std::vector<format::SafetensorsEntry> entries;
  for (const SlimeTensor& tensor : tensors) {
    metadata[tensor.name] = tensor.checksum;
    frames[tensor.name] = tensor.frame;
    entries.push_back({.name = tensor.name, .dtype = Dtype::kU8, .shape = {tensor.frame.size()}});
  }
  DELTAWIRE_ASSIGN(entries, format::LayoutCheckpoint(std::move(entries)));
  SlimeFile file;
  DELTAWIRE_ASSIGN(file.head, format::WriteSafetensorsHeader(entries, metadata));
  for (const auto& entry : entries) {
    const ByteSpan frame = frames[entry.name];
    file.data.insert(file.data.end(), frame.begin(), frame.end());
  }
  return file;
}

Result<Bytes> EncodeSlime(SlimeEncoding encoding, ByteSpan base, ByteSpan now) {
  if (encoding == SlimeEncoding::kOverwrite) {
    DELTAWIRE_ASSIGN(const Bytes content, Overwrites(base, now));
    return CompressFrame(content, kLevel);
  }
  Bytes content(now.size());
  for (size_t i = 0; i < now.size(); ++i) content[i] = base[i] ^ now[i];
  return CompressFrame(content, kLevel);
}

Status ApplySlime(SlimeEncoding encoding, Checksum checksum, const SlimeTensor& tensor,
                  MutableByteSpan bits) {
  if (auto status = Apply(encoding, tensor.frame, bits); !status) {
    return Fail(status.error().Within(fmt::format("slime data: tensor {}", Quoted(tensor.name))));
  }
  if (const std::string found = ChecksumHex(checksum, bits); found != tensor.checksum) {
    return Fail(
        Code::kWrongBase,
        "slime data: tensor {}: applied to this base it has {} {}, the delta says {}; the base is not the "
        "version it was made from, or the delta is damaged",
        Quoted(tensor.name), ChecksumName(checksum), found, tensor.checksum);
  }
  return {};
}

std::string SlimeStateText(uint64_t version) {
  return fmt::format("{{\"version\": \"{}\"}}", SlimeVersionText(version));
}

Result<uint64_t> ParseSlimeState(ByteSpan text) {
  DELTAWIRE_ASSIGN(const auto root, format::ParseJson(text, {.max_bytes = kMaxStateBytes}, "slime state"));
  DELTAWIRE_ASSIGN(const auto object, format::JsonObject::From(root, "slime state"));
  DELTAWIRE_ASSIGN(const std::string version, object.String("version"));
  const auto number = SlimeVersionFrom(version);
  if (!number) {
    return Fail(Code::kCorrupt, "slime state: version is {}, expected digits", Quoted(version));
  }
  return *number;
}

}  // namespace deltawire::interchange
