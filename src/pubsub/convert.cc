#include "pubsub/convert.h"

#include <filesystem>

#include "device/block.h"
#include "format/byte_map.h"
#include "format/safetensors.h"
#include "pubsub/file_io.h"
#include "pubsub/model_change.h"
#include "pubsub/new_tensors.h"
#include "pubsub/temporary_copy.h"

namespace deltawire::pubsub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDataName = "model-00000-of-00001.safetensors";

ByteSpan AllBytes(const Memory& file) {
  return {static_cast<const uint8_t*>(file.handle()), file.size_bytes()};
}

struct Input {
  UpdateFormat format = UpdateFormat::kPatch;
  std::unique_ptr<NewTensors> tensors;
  std::optional<uint64_t> slime_version;
};

Result<Input> OpenInput(const std::string& path, const Checkpoint& base, const ConvertOptions& options) {
  Input input;
  if (options.from) {
    input.format = *options.from;
  } else {
    DELTAWIRE_ASSIGN(input.format, DetectUpdateFormat(path));
  }
  switch (input.format) {
    case UpdateFormat::kPatch: {
      DELTAWIRE_ASSIGN(input.tensors, TensorsOfPatch(path, base, options.patch));
      return input;
    }
    case UpdateFormat::kCheckpoint: {
      DELTAWIRE_ASSIGN(input.tensors, TensorsOfCheckpoint(path, base));
      return input;
    }
    case UpdateFormat::kSlime: {
      DELTAWIRE_ASSIGN(auto folder, TensorsOfSlime(path, base));
      input.tensors = std::move(folder.tensors);
      input.slime_version = folder.index.version;
      return input;
    }
    case UpdateFormat::kTrl: {
      DELTAWIRE_ASSIGN(input.tensors, TensorsOfTrl(path, base));
      return input;
    }
  }
  return Fail(Code::kInternal, "unknown format {}", static_cast<int>(input.format));
}

Result<uint64_t> WritePatch(const ModelChange& change, const std::string& out,
                            const ConvertOptions& options) {
  format::UpdateHeader header;
  header.run = "patch";
  header.writer = "convert";
  header.inventory = format::InventoryHash(change.inventory());
  header.base_digest = change.before();
  header.digest = change.after();
  delta::EncodeOptions encoding{
      .coding = options.patch.coding, .embed = format::EmbedInventory::kYes, .source = {}};
  encoding.source.read = [&](uint32_t tensor, const Box& box, MutableByteSpan bits) -> Status {
    change.ReadNew(tensor, box, bits);
    return {};
  };
  DELTAWIRE_ASSIGN(const auto update,
                   delta::EncodeUpdate(header, change.inventory(), change.grid(), change.tensors(), encoding,
                                       options.patch.parallel));
  const ByteSpan pieces[] = {update.frame.head, update.blocks, update.frame.tail};
  DELTAWIRE_TRY(WriteFileDurably(out, pieces));
  return update.size_bytes();
}

Status WriteSlimeState(const std::string& folder, uint64_t version) {
  const fs::path state = fs::path(folder) / kSlimeState;
  std::error_code error;
  if (!fs::create_directory(state.parent_path(), error)) {
    return SystemError("create", state.parent_path().string(), error.value());
  }
  const std::string text = interchange::SlimeStateText(version);
  const ByteSpan pieces[] = {AsBytes(text)};
  return WriteFileDurably(state.string(), pieces);
}

Result<uint64_t> WriteCheckpoint(const ModelChange& change, const std::string& base_path,
                                 const std::string& out, std::optional<uint64_t> slime_version,
                                 const ConvertOptions& options) {
  TemporaryCopy copy = TemporaryCopy::For(out);
  DELTAWIRE_TRY(copy.CopyFrom(base_path));
  uint64_t bytes = 0;
  {
    DELTAWIRE_ASSIGN(const Checkpoint target, Checkpoint::Open(copy.path(), true));
    for (const delta::ChangedTensor& tensor : change.tensors()) {
      const TensorView& view = target.tensors()[tensor.tensor].view;
      bytes += *ElementCount(view.shape) * DtypeBytes(view.dtype);
      for (const delta::ChangedBlock& block : tensor.blocks) {
        const Box& box = change.grid().boxes(tensor.tensor)[block.block];
        const device::Block at(options.patch.backends, view, box, device::CastOfWidth(DtypeBytes(view.dtype)),
                               0);
        at.Scatter(block.change.changed, block.change.new_bits);
      }
    }
    DELTAWIRE_TRY(target.Sync());
  }
  // What is on the disk now, read again: the base may have changed while it was copied.
  DELTAWIRE_ASSIGN(const Digest digest, DigestCheckpoint(copy.path(), options.patch));
  if (digest != change.after()) {
    return Fail(Code::kWrongBase,
                "the checkpoint written has state {}, expected {}; {} changed while it was read",
                digest.Hex(), change.after().Hex(), base_path);
  }
  std::error_code error;
  if (slime_version && fs::is_directory(copy.path(), error)) {
    DELTAWIRE_TRY(WriteSlimeState(copy.path(), *slime_version));
  }
  DELTAWIRE_TRY(copy.RenameTo(out));
  return bytes;
}

// One changed tensor, encoded and decoded again.
Status EncodeSlimeTensor(const ModelChange& change, uint32_t tensor, const interchange::SlimeIndex& index,
                         interchange::SlimeTensor& out, Bytes& frame) {
  const ByteSpan base = change.BaseBits(tensor);
  Bytes bits(base.size());
  change.ReadNew(tensor, WholeBox(change.inventory().tensors[tensor].shape), bits);
  const std::string& name = change.inventory().tensors[tensor].name;
  auto encoded = interchange::EncodeSlime(index.encoding, base, bits);
  if (!encoded) return Fail(encoded.error().Within("tensor " + name));
  frame = *std::move(encoded);
  out = {name, frame, interchange::ChecksumHex(index.checksum, bits)};
  Bytes again(base.begin(), base.end());
  DELTAWIRE_TRY(interchange::ApplySlime(index.encoding, index.checksum, out, again));
  if (again == bits) return {};
  return Fail(Code::kInternal, "tensor {}: the slime delta does not give back what was encoded", name);
}

Result<interchange::SlimeIndex> IndexFor(const std::string& out, const ConvertOptions& options) {
  interchange::SlimeIndex index;
  index.encoding = options.slime_encoding;
  index.checksum = options.slime_checksum;
  const std::string name = fs::path(out).filename().string();
  const auto named = interchange::SlimeVersionFromFolder(name);
  const auto version = options.slime_version ? options.slime_version : named;
  if (!version) {
    return Fail(Code::kInvalidArgument,
                "{} does not say which version it is; name the folder weight_v000007, or give the version",
                name);
  }
  if (named && *named != *version) {
    return Fail(Code::kInvalidArgument, "{} is the folder of version {}, not of {}", name, *named, *version);
  }
  if (*version == 0) {
    return Fail(Code::kInvalidArgument,
                "version 0 is the checkpoint that engines start from; deltas begin at 1");
  }
  index.version = *version;
  index.base_version = options.slime_base_version.value_or(*version - 1);
  if (index.base_version >= index.version) {
    return Fail(Code::kInvalidArgument, "version {} is not above its base version {}", index.version,
                index.base_version);
  }
  return index;
}

Result<uint64_t> WriteSlime(const ModelChange& change, const std::string& out,
                            const ConvertOptions& options) {
  DELTAWIRE_ASSIGN(auto index, IndexFor(out, options));
  std::vector<uint32_t> changed;
  for (const auto& tensor : change.tensors()) {
    if (!tensor.blocks.empty()) changed.push_back(tensor.tensor);
  }
  std::vector<interchange::SlimeTensor> tensors(changed.size());
  std::vector<Bytes> frames(changed.size());
  std::vector<Status> statuses(changed.size());
  options.patch.parallel.For(changed.size(), [&](uint64_t i) {
    statuses[i] = EncodeSlimeTensor(change, changed[i], index, tensors[i], frames[i]);
  });
  for (const Status& status : statuses) DELTAWIRE_TRY(status);

  TemporaryCopy folder = TemporaryCopy::For(out);
  DELTAWIRE_TRY(folder.MakeFolder());
  uint64_t bytes = 0;
  if (!tensors.empty()) {
    DELTAWIRE_ASSIGN(const auto file, interchange::BuildSlimeFile(tensors));
    const ByteSpan pieces[] = {file.head, file.data};
    bytes = file.head.size() + file.data.size();
    DELTAWIRE_TRY(WriteFileDurably((fs::path(folder.path()) / kDataName).string(), pieces));
  }
  for (const auto& tensor : tensors) index.files[tensor.name] = kDataName;
  const std::string text = interchange::SlimeIndexText(index);
  const ByteSpan pieces[] = {AsBytes(text)};
  DELTAWIRE_TRY(WriteFileDurably((fs::path(folder.path()) / kSlimeIndexName).string(), pieces));
  // Readers take a folder without an index for a checkpoint: it gets its name when all of it is there.
  DELTAWIRE_TRY(folder.RenameTo(out));
  return bytes + text.size();
}

}  // namespace

std::string_view UpdateFormatName(UpdateFormat format) {
  switch (format) {
    case UpdateFormat::kPatch: return "patch";
    case UpdateFormat::kCheckpoint: return "checkpoint";
    case UpdateFormat::kSlime: return "slime";
    case UpdateFormat::kTrl: return "trl";
  }
  return "";
}

Result<UpdateFormat> DetectUpdateFormat(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const std::string index = (fs::path(path) / kSlimeIndexName).string();
    if (!fs::exists(index, error)) return UpdateFormat::kCheckpoint;
    DELTAWIRE_ASSIGN(const auto file, MapFile(index, false));
    return interchange::IsSlimeDelta(AllBytes(*file)) ? UpdateFormat::kSlime : UpdateFormat::kCheckpoint;
  }
  DELTAWIRE_ASSIGN(const auto file, MapFile(path, false));
  const ByteSpan bytes = AllBytes(*file);
  const auto kind = format::KindOf(bytes);
  if (!kind) return Fail(kind.error().Within(path));
  if (*kind == format::FileKind::kUpdate) return UpdateFormat::kPatch;
  if (*kind != format::FileKind::kSafetensors && *kind != format::FileKind::kOpen) {
    return Fail(Code::kCorrupt, "{} is of kind \"{}\", expected an update or a checkpoint", path,
                format::FileKindName(*kind));
  }
  if (*kind == format::FileKind::kSafetensors) return UpdateFormat::kCheckpoint;
  DELTAWIRE_ASSIGN(const auto header, format::ParseSafetensors(bytes, bytes.size()));
  return header.metadata.contains("deltawire.format") ? UpdateFormat::kPatch : UpdateFormat::kTrl;
}

Result<Converted> Convert(const std::string& input_path, const std::string& base_path,
                          const std::string& out_path, const ConvertOptions& options) {
  const Stopwatch watch(*options.patch.clock);
  DELTAWIRE_ASSIGN(const std::string out, NewOutput(out_path));
  if (options.to == UpdateFormat::kTrl) {
    return Fail(Code::kUnsupported,
                "TRL patches are only read; write coding \"open\", which TRL's readers read");
  }
  if (options.to == UpdateFormat::kSlime) DELTAWIRE_TRY(IndexFor(out, options));
  DELTAWIRE_ASSIGN(const Checkpoint base, Checkpoint::Open(base_path));
  DELTAWIRE_ASSIGN(const Input input, OpenInput(input_path, base, options));
  DELTAWIRE_ASSIGN(const ModelChange change, ModelChange::Find(base, *input.tensors, options.patch));

  Converted converted;
  converted.from = input.format;
  converted.before = change.before();
  Version& version = converted.version;
  version.digest = change.after();
  version.changed = change.changed();
  version.sent = version.changed;
  version.total = change.total();
  version.notes = input.tensors->notes();
  if (options.to == UpdateFormat::kPatch) {
    DELTAWIRE_ASSIGN(version.bytes, WritePatch(change, out, options));
  } else if (options.to == UpdateFormat::kCheckpoint) {
    DELTAWIRE_ASSIGN(version.bytes, WriteCheckpoint(change, base_path, out, input.slime_version, options));
  } else {
    DELTAWIRE_ASSIGN(version.bytes, WriteSlime(change, out, options));
  }
  version.seconds = watch.Seconds();
  return converted;
}

}  // namespace deltawire::pubsub
