#include "format/open_patch.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/hash.h"
#include "format/other_version.h"
#include "format/safetensors.h"
#include "format/text.h"
#include "format/update_metadata.h"

namespace deltawire::format {
namespace {

// Our keys stand beside TRL's, which its readers know by these very names.
constexpr std::string_view kPrefix = "deltawire.";
constexpr std::string_view kFormatKey = "deltawire.format";
constexpr uint64_t kSparsePatchVersion = 1;  // TRL's, of its metadata key "version"
constexpr std::string_view kVersionKey = "deltawire.format_version";
constexpr std::string_view kContentKey = "deltawire.content";
constexpr std::string_view kIndexSuffix = ".idx";
constexpr std::string_view kValueSuffix = ".val";
constexpr uint64_t kDigestBytes = 16;

const std::string* Find(const Metadata& metadata, std::string_view key) {
  const auto found = metadata.find(std::string(key));
  return found == metadata.end() ? nullptr : &found->second;
}

Result<IndexEncoding> EncodingFrom(const Metadata& metadata) {
  const std::string* encoding = Find(metadata, "encoding");
  if (encoding == nullptr) {
    return Fail(Code::kUnsupported,
                "patch: metadata has no \"encoding\"; TRL's formats before v3 are not read: write the patch "
                "with a newer TRL");
  }
  if (*encoding == "raw") return IndexEncoding::kRaw;
  if (*encoding == "gap_delta") return IndexEncoding::kGap;
  return Fail(Code::kUnsupported,
              "patch: encoding {}; this build reads \"raw\" and \"gap_delta\": write the patch with one of "
              "those",
              Quoted(*encoding));
}

Status CheckIndexDtype(const OpenTensor& tensor, IndexEncoding encoding) {
  const Dtype dtype = tensor.index_dtype;
  const bool fits = encoding == IndexEncoding::kRaw
                        ? dtype == Dtype::kI32
                        : dtype == Dtype::kU16 || dtype == Dtype::kU32 || dtype == Dtype::kU64;
  if (fits) return {};
  return Fail(Code::kCorrupt, "patch: tensor {}: positions are {}, expected {}", Quoted(tensor.name),
              DtypeName(dtype), encoding == IndexEncoding::kRaw ? "I32" : "U16, U32 or U64");
}

// A column of a tensor: its entry, and the tensor's name.
struct Column {
  const SafetensorsEntry* entry = nullptr;
  std::string_view name;
};

std::vector<Column> ColumnsOf(const std::vector<SafetensorsEntry>& entries, std::string_view suffix) {
  std::vector<Column> columns;
  for (const auto& entry : entries) {
    const std::string_view name = entry.name;
    if (name.ends_with(suffix)) columns.push_back({&entry, name.substr(0, name.size() - suffix.size())});
  }
  std::sort(columns.begin(), columns.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return columns;
}

Status CheckOneDimension(const SafetensorsEntry& entry) {
  if (entry.shape.size() == 1) return {};
  return Fail(Code::kCorrupt, "patch: {} has shape {}, expected one dimension", Quoted(entry.name),
              ShapeText(entry.shape));
}

ByteSpan DataOf(ByteSpan file, const SafetensorsHeader& container, const SafetensorsEntry& entry) {
  return file.subspan(container.data_offset + entry.begin, entry.end - entry.begin);
}

// Everything that is neither .idx nor .val must be ours, in an `open` update: in order, at the end.
Status ReadSections(ByteSpan file, const SafetensorsHeader& container, OpenPatch& patch) {
  const auto& entries = container.entries;
  const auto section = [&](size_t from_end, std::string_view name) -> Result<ByteSpan> {
    if (entries.size() < from_end || entries[entries.size() - from_end].name != name ||
        entries[entries.size() - from_end].dtype != Dtype::kU8) {
      return Fail(Code::kCorrupt, "patch: tensor \"{}\" (U8) is not where it was expected", name);
    }
    return DataOf(file, container, entries[entries.size() - from_end]);
  };
  DELTAWIRE_ASSIGN(const ByteSpan digests, section(1, kDigestsTensor));
  if (digests.size() % kDigestBytes != 0) {
    return Fail(Code::kCorrupt, "patch: tensor \"{}\" has {} bytes, expected a multiple of {}",
                kDigestsTensor, digests.size(), kDigestBytes);
  }
  for (size_t at = 0; at < digests.size(); at += kDigestBytes) {
    patch.digests.push_back(
        {{LoadLe<uint64_t>(digests.data() + at), LoadLe<uint64_t>(digests.data() + at + 8)}});
  }
  if (entries.size() == patch.tensors.size() * 2 + 1) return {};
  DELTAWIRE_ASSIGN(patch.inventory, section(2, kInventoryTensor));
  return {};
}

// TRL writes Python's str() of values; its readers look at `sparse` and `encoding`.
Metadata SparseMetadata(const UpdateHeader& header, uint64_t params, uint64_t changed, uint64_t total) {
  const double sparsity = total == 0 ? 0.0 : 1.0 - static_cast<double>(changed) / static_cast<double>(total);
  return {{"format", std::string(kSparsePatchFormat)},
          {"version", "1"},
          {"sparse", "True"},
          {"model_version", fmt::format("{}", header.number)},
          {"num_changed_params", fmt::format("{}", params)},
          {"total_changed_elements", fmt::format("{}", changed)},
          {"total_elements", fmt::format("{}", total)},
          {"sparsity", fmt::format("{}", sparsity)},
          {"encoding", "gap_delta"}};
}

template <class T>
Status AppendPositions(const OpenTensor& tensor, IndexEncoding encoding, uint64_t elements,
                       std::vector<uint64_t>& out) {
  uint64_t next = 0;  // the smallest position that may follow
  for (uint64_t i = 0; i < tensor.count; ++i) {
    const T value = LoadLe<T>(tensor.index.data() + i * sizeof(T));
    bool valid = true;
    uint64_t position = 0;
    if (encoding == IndexEncoding::kRaw) {
      position = static_cast<uint64_t>(value);
      valid = value >= 0 && position >= next;
    } else {
      const auto sum = CheckedAdd(next, static_cast<uint64_t>(value));
      valid = sum.has_value();
      position = sum.value_or(0);
    }
    if (!valid || position >= elements) {
      return Fail(Code::kCorrupt,
                  "patch: tensor {}: entry {} ({}) leads outside of its {} elements, or not past the entry "
                  "before; the "
                  "patch is damaged or for another model",
                  Quoted(tensor.name), i, value, elements);
    }
    out.push_back(position);
    next = position + 1;
  }
  return {};
}

template <class T>
void AppendGapsAs(const std::vector<uint64_t>& positions, Bytes& out) {
  const size_t at = out.size();
  out.resize(at + positions.size() * sizeof(T));
  uint64_t next = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    StoreLe(static_cast<T>(positions[i] - next), out.data() + at + i * sizeof(T));
    next = positions[i] + 1;
  }
}

}  // namespace

bool IsOpenPatch(ByteSpan file) {
  const auto container = ParseSafetensors(file, file.size());
  if (!container) return false;
  const std::string* format = Find(container->metadata, "format");
  return format != nullptr && *format == kSparsePatchFormat;
}

Result<OpenPatch> ParseOpenPatch(ByteSpan file) {
  DELTAWIRE_ASSIGN(const SafetensorsHeader container, ParseSafetensors(file, file.size()));
  const Metadata& metadata = container.metadata;
  const std::string* format = Find(metadata, "format");
  if (format == nullptr || *format != kSparsePatchFormat) {
    return Fail(Code::kCorrupt, "patch: format is {}, expected \"{}\"",
                format == nullptr ? "missing" : Quoted(*format), kSparsePatchFormat);
  }
  const std::string* ours = Find(metadata, kFormatKey);
  if (ours != nullptr && *ours != kOpenFormat) {
    return Fail(Code::kUnsupported, "patch: {} is {}; this build reads \"{}\"", kFormatKey, Quoted(*ours),
                kOpenFormat);
  }
  const std::string* version = Find(metadata, ours != nullptr ? kVersionKey : "version");
  const uint64_t known = ours != nullptr ? kOpenVersion : kSparsePatchVersion;
  if (version == nullptr || *version != std::to_string(known))
    return Fail(OtherVersion("patch", version == nullptr ? "missing" : *version, known));
  const std::string* sparse = Find(metadata, "sparse");
  if (sparse == nullptr || *sparse != "True") {
    return Fail(Code::kUnsupported,
                "patch: sparse is {}, expected \"True\"; an anchor is a whole checkpoint: use it as one "
                "(deltawire diff)",
                sparse == nullptr ? "missing" : Quoted(*sparse));
  }
  OpenPatch patch;
  DELTAWIRE_ASSIGN(patch.encoding, EncodingFrom(metadata));

  const auto index = ColumnsOf(container.entries, kIndexSuffix);
  const auto values = ColumnsOf(container.entries, kValueSuffix);
  for (size_t i = 0; i < std::max(index.size(), values.size()); ++i) {
    if (i >= index.size() || i >= values.size() || index[i].name != values[i].name) {
      const bool lacks_index = i >= index.size() || (i < values.size() && values[i].name < index[i].name);
      return Fail(Code::kCorrupt, "patch: tensor {} has no {}",
                  Quoted(lacks_index ? values[i].name : index[i].name),
                  lacks_index ? kIndexSuffix : kValueSuffix);
    }
    const SafetensorsEntry& at = *index[i].entry;
    const SafetensorsEntry& bits = *values[i].entry;
    DELTAWIRE_TRY(CheckOneDimension(at));
    DELTAWIRE_TRY(CheckOneDimension(bits));
    OpenTensor tensor{std::string(index[i].name),    at.dtype,   DataOf(file, container, at), bits.dtype,
                      DataOf(file, container, bits), at.shape[0]};
    DELTAWIRE_TRY(CheckIndexDtype(tensor, patch.encoding));
    if (at.shape[0] != bits.shape[0]) {
      return Fail(Code::kCorrupt, "patch: tensor {} has {} positions and {} values", Quoted(tensor.name),
                  at.shape[0], bits.shape[0]);
    }
    patch.tensors.push_back(std::move(tensor));
  }
  for (const auto& entry : container.entries) {
    const bool column = entry.name.ends_with(kIndexSuffix) || entry.name.ends_with(kValueSuffix);
    const bool section = ours != nullptr && (entry.name == kInventoryTensor || entry.name == kDigestsTensor);
    if (!column && !section) {
      return Fail(Code::kCorrupt, "patch: tensor {} is neither positions (.idx) nor values (.val)",
                  Quoted(entry.name));
    }
  }
  if (ours == nullptr) return patch;

  DELTAWIRE_TRY(ReadSections(file, container, patch));
  const std::string* content = Find(metadata, kContentKey);
  const std::string found =
      UpdateContentHash(metadata, kContentKey, container.entries, {file.subspan(container.data_offset)});
  if (content == nullptr || *content != found) {
    return Fail(Code::kCorrupt, "patch: content hash is {}, the file says {}; it is damaged, fetch it again",
                found, content == nullptr ? "nothing" : Quoted(*content));
  }
  DELTAWIRE_ASSIGN(patch.header, UpdateHeaderFrom(metadata, kPrefix));
  return patch;
}

Result<std::vector<uint64_t>> PositionsOf(const OpenTensor& tensor, IndexEncoding encoding,
                                          uint64_t elements) {
  std::vector<uint64_t> out;
  out.reserve(tensor.count);
  switch (tensor.index_dtype) {
    case Dtype::kI32: DELTAWIRE_TRY(AppendPositions<int32_t>(tensor, encoding, elements, out)); break;
    case Dtype::kU16: DELTAWIRE_TRY(AppendPositions<uint16_t>(tensor, encoding, elements, out)); break;
    case Dtype::kU32: DELTAWIRE_TRY(AppendPositions<uint32_t>(tensor, encoding, elements, out)); break;
    case Dtype::kU64: DELTAWIRE_TRY(AppendPositions<uint64_t>(tensor, encoding, elements, out)); break;
    default: return Fail(Code::kInternal, "positions of dtype {}", DtypeName(tensor.index_dtype));
  }
  return out;
}

Result<Inventory> ReadOpenInventory(const OpenPatch& patch) {
  if (!patch.inventory) {
    return Fail(Code::kNotFound, "update {}: it carries no inventory; only standalone patches do",
                patch.header->number);
  }
  DELTAWIRE_ASSIGN(Inventory inventory, DecompressInventory(*patch.inventory));
  if (const std::string hash = InventoryHash(inventory); hash != patch.header->inventory) {
    return Fail(Code::kCorrupt, "update {}: carries inventory {}, the header names {}", patch.header->number,
                hash, patch.header->inventory);
  }
  return inventory;
}

Dtype AppendGaps(const std::vector<uint64_t>& positions, Bytes& out) {
  uint64_t largest = 0;
  uint64_t next = 0;
  for (const uint64_t position : positions) {
    largest = std::max(largest, position - next);
    next = position + 1;
  }
  if (largest <= std::numeric_limits<uint16_t>::max()) {
    AppendGapsAs<uint16_t>(positions, out);
    return Dtype::kU16;
  }
  if (largest <= std::numeric_limits<uint32_t>::max()) {
    AppendGapsAs<uint32_t>(positions, out);
    return Dtype::kU32;
  }
  AppendGapsAs<uint64_t>(positions, out);
  return Dtype::kU64;
}

Result<BuiltOpen> BuildOpen(const UpdateHeader& header, const std::vector<OpenColumns>& tensors,
                            const std::vector<Digest>& digests, const Inventory& inventory,
                            EmbedInventory embed) {
  DELTAWIRE_TRY(CheckUpdateHeader(header, Code::kInvalidArgument));
  if (const std::string hash = InventoryHash(inventory); hash != header.inventory) {
    return Fail(Code::kInvalidArgument, "update: the header names inventory {}, the one given is {}",
                header.inventory, hash);
  }
  uint64_t changed = 0;
  uint64_t total = 0;
  for (const auto& tensor : inventory.tensors) total += *ElementCount(tensor.shape);

  std::map<std::string, ByteSpan> data;
  std::vector<SafetensorsEntry> entries;
  for (const OpenColumns& tensor : tensors) {
    changed += tensor.count;
    const auto add = [&](std::string_view suffix, Dtype dtype, ByteSpan bytes) {
      const std::string name = tensor.name + std::string(suffix);
      data[name] = bytes;
      entries.push_back({.name = name, .dtype = dtype, .shape = {tensor.count}});
    };
    add(kIndexSuffix, tensor.index_dtype, tensor.index);
    add(kValueSuffix, tensor.dtype, tensor.values);
  }
  DELTAWIRE_ASSIGN(entries, LayoutCheckpoint(std::move(entries)));

  BuiltOpen out;
  for (const auto& entry : entries) {
    const ByteSpan bytes = data[entry.name];
    out.data.insert(out.data.end(), bytes.begin(), bytes.end());
  }
  const auto section = [&](std::string_view name, const Bytes& bytes) {
    entries.push_back({.name = std::string(name), .dtype = Dtype::kU8, .shape = {bytes.size()}});
    out.frame.tail.insert(out.frame.tail.end(), bytes.begin(), bytes.end());
  };
  if (embed == EmbedInventory::kYes) {
    DELTAWIRE_ASSIGN(const Bytes compressed, CompressInventory(inventory));
    section(kInventoryTensor, compressed);
  }
  Bytes digest_bytes;
  for (const Digest& digest : digests) {
    AppendLe(digest.lanes[0], digest_bytes);
    AppendLe(digest.lanes[1], digest_bytes);
  }
  section(kDigestsTensor, digest_bytes);

  DELTAWIRE_ASSIGN(entries, LayoutInOrder(std::move(entries)));
  Metadata metadata = SparseMetadata(header, tensors.size(), changed, total);
  metadata.merge(UpdateHeaderMetadata(header, kPrefix));
  metadata.emplace(kFormatKey, kOpenFormat);
  metadata.emplace(kVersionKey, std::to_string(kOpenVersion));
  metadata.emplace(kContentKey,
                   UpdateContentHash(metadata, kContentKey, entries, {out.data, out.frame.tail}));
  DELTAWIRE_ASSIGN(out.frame.head, WriteSafetensorsHeader(entries, metadata));
  out.frame.table = {.offset = out.frame.head.size() + entries.back().begin,
                     .bytes = digest_bytes.size(),
                     .sha256 = ToHex(Sha256(digest_bytes))};
  return out;
}

}  // namespace deltawire::format
