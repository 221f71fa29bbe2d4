#include "pubsub/new_tensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "delta/replica.h"
#include "format/text.h"
#include "pubsub/loaded_patch.h"

namespace deltawire::pubsub {
namespace {

namespace fs = std::filesystem;
using format::Quoted;

ByteSpan AllBytes(const Memory& file) {
  return {static_cast<const uint8_t*>(file.handle()), file.size_bytes()};
}

Result<const TensorView*> TensorOf(const Checkpoint& base, const std::string& name) {
  const TensorView* view = base.Find(name);
  if (view != nullptr) return view;
  return Fail(Code::kMismatch, "the input changes tensor {}, which {} does not have; is it the right base?",
              Quoted(name), base.path());
}

class CheckpointTensors final : public NewTensors {
 public:
  explicit CheckpointTensors(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  bool Changes(const std::string&) const override { return true; }
  Status Apply(const std::string& name, MutableByteSpan bits) const override {
    const TensorView& view = *checkpoint_.Find(name);
    if (!bits.empty()) {
      std::memcpy(bits.data(), static_cast<const uint8_t*>(view.memory->handle()) + view.offset_bytes,
                  bits.size());
    }
    return {};
  }

 private:
  Checkpoint checkpoint_;
};

class PatchTensors final : public NewTensors {
 public:
  PatchTensors(std::unique_ptr<LoadedPatch> patch, delta::Replica replica)
      : patch_(std::move(patch)), replica_(std::move(replica)) {
    for (const auto& [place, staged] : replica_.staged()) {
      blocks_[patch_->inventory.tensors[place.first].name].emplace_back(place, &staged);
    }
  }

  bool Changes(const std::string& name) const override { return blocks_.contains(name); }
  Status Apply(const std::string& name, MutableByteSpan bits) const override {
    const device::Backends backends = device::HostBackends();
    for (const auto& [place, staged] : blocks_.at(name)) {
      const auto& spec = patch_->inventory.tensors[place.first];
      const TensorView view =
          TensorView::RowMajor(BorrowHost(bits.data(), bits.size()), 0, spec.dtype, spec.shape);
      const Box& box = patch_->grid->boxes(place.first)[place.second];
      const device::Block at(backends, view, box, device::CastOfWidth(DtypeBytes(spec.dtype)), 0);
      if (staged->dense) {
        at.Write(staged->new_bits);
      } else {
        at.Scatter(staged->positions, staged->new_bits);
      }
    }
    return {};
  }
  std::optional<Digest> digest() const override { return patch_->update.header.digest; }

 private:
  using Place = std::pair<uint32_t, uint32_t>;

  std::unique_ptr<LoadedPatch> patch_;  // in place: the replica refers to its inventory and grid
  delta::Replica replica_;
  std::map<std::string, std::vector<std::pair<Place, const delta::StagedBlock*>>> blocks_;
};

class TrlTensors final : public NewTensors {
 public:
  TrlTensors(std::shared_ptr<Memory> file, format::OpenPatch patch)
      : file_(std::move(file)), encoding_(patch.encoding) {
    for (auto& tensor : patch.tensors) tensors_[tensor.name] = std::move(tensor);
  }

  bool Changes(const std::string& name) const override { return tensors_.contains(name); }
  Status Apply(const std::string& name, MutableByteSpan bits) const override {
    const format::OpenTensor& tensor = tensors_.at(name);
    const uint64_t width = DtypeBytes(tensor.dtype);
    DELTAWIRE_ASSIGN(const auto positions, format::PositionsOf(tensor, encoding_, bits.size() / width));
    for (size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(bits.data() + positions[i] * width, tensor.values.data() + i * width, width);
    }
    return {};
  }
  std::vector<std::string> notes() const override {
    return {"unverified base: a TRL patch does not say which checkpoint it is for"};
  }

 private:
  std::shared_ptr<Memory> file_;
  format::IndexEncoding encoding_;
  std::map<std::string, format::OpenTensor> tensors_;
};

class SlimeTensors final : public NewTensors {
 public:
  SlimeTensors(std::vector<std::shared_ptr<Memory>> files, const interchange::SlimeIndex& index,
               std::map<std::string, interchange::SlimeTensor> tensors, size_t base_tensors)
      : files_(std::move(files)),
        encoding_(index.encoding),
        checksum_(index.checksum),
        tensors_(std::move(tensors)),
        base_tensors_(base_tensors) {}

  bool Changes(const std::string& name) const override { return tensors_.contains(name); }
  Status Apply(const std::string& name, MutableByteSpan bits) const override {
    return interchange::ApplySlime(encoding_, checksum_, tensors_.at(name), bits);
  }
  std::vector<std::string> notes() const override {
    std::vector<std::string> notes;
    if (tensors_.size() < base_tensors_) {
      notes.push_back(
          fmt::format("unverified base: the delta has checksums of the {} tensors that it changes, not of "
                      "the other {}",
                      tensors_.size(), base_tensors_ - tensors_.size()));
    }
    if (checksum_ == interchange::Checksum::kAdler32) {
      notes.emplace_back("weak checksum: adler32 misses much damage; publish with xxh3-128");
    }
    return notes;
  }

 private:
  std::vector<std::shared_ptr<Memory>> files_;
  interchange::SlimeEncoding encoding_;
  interchange::Checksum checksum_;
  std::map<std::string, interchange::SlimeTensor> tensors_;
  size_t base_tensors_;
};

Status CheckSlimeState(const std::string& base, const interchange::SlimeIndex& index) {
  const std::string path = (fs::path(base) / kSlimeState).string();
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  DELTAWIRE_ASSIGN(const auto file, MapFile(path, false));
  const auto version = interchange::ParseSlimeState(AllBytes(*file));
  if (!version) return Fail(version.error().Within(path));
  if (*version == index.base_version) return {};
  return Fail(Code::kWrongBase,
              "{} holds version {} by its {}, the delta turns version {} into {}; apply the deltas in order",
              base, *version, kSlimeState, index.base_version, index.version);
}

}  // namespace

Result<std::unique_ptr<NewTensors>> TensorsOfCheckpoint(const std::string& path, const Checkpoint& base) {
  DELTAWIRE_ASSIGN(auto now, Checkpoint::Open(path));
  DELTAWIRE_ASSIGN(const auto inventory, base.MakeInventory());
  DELTAWIRE_TRY(format::CompareTensors(inventory, now.Specs(), path, format::ExtraTensors::kRefuse));
  return std::make_unique<CheckpointTensors>(std::move(now));
}

Result<std::unique_ptr<NewTensors>> TensorsOfPatch(const std::string& path, const Checkpoint& base,
                                                   const PatchOptions& options) {
  DELTAWIRE_ASSIGN(LoadedPatch patch, LoadPatch(path, options.parallel));
  DELTAWIRE_TRY(
      format::CompareTensors(patch.inventory, base.Specs(), base.path(), format::ExtraTensors::kRefuse));
  std::vector<delta::ReplicaTensor> tensors;
  for (const auto& tensor : base.tensors()) tensors.push_back({{tensor.view}});
  // The replica is only staged on, never committed: the base is mapped for reading.
  auto kept = std::make_unique<LoadedPatch>(std::move(patch));
  DELTAWIRE_ASSIGN(auto replica, delta::Replica::Attach(options.backends, kept->inventory, *kept->grid,
                                                        std::move(tensors), options.parallel));
  if (!format::StartsFrom(kept->update.header, replica.digest())) {
    return Fail(
        Code::kWrongBase,
        "the patch was made from a checkpoint with state digest {}, {} has {}; give the checkpoint it was "
        "made from",
        kept->update.header.base_digest->Hex(), base.path(), replica.digest().Hex());
  }
  DELTAWIRE_TRY(replica.Stage(kept->update));
  return std::make_unique<PatchTensors>(std::move(kept), std::move(replica));
}

Result<std::unique_ptr<NewTensors>> TensorsOfTrl(const std::string& path, const Checkpoint& base) {
  DELTAWIRE_ASSIGN(auto file, MapFile(path, false));
  auto patch = format::ParseOpenPatch(AllBytes(*file));
  if (!patch) return Fail(patch.error().Within(path));
  if (patch->header) {
    return Fail(Code::kInvalidArgument,
                "{} is an `open` update of deltawire's, which names its base; read it as \"patch\"", path);
  }
  for (const auto& tensor : patch->tensors) {
    DELTAWIRE_ASSIGN(const TensorView* view, TensorOf(base, tensor.name));
    if (tensor.dtype == view->dtype) continue;
    return Fail(Code::kMismatch, "{}: tensor {} has {} values, in {} it is {}", path, Quoted(tensor.name),
                DtypeName(tensor.dtype), base.path(), DtypeName(view->dtype));
  }
  return std::make_unique<TrlTensors>(std::move(file), *std::move(patch));
}

Result<SlimeFolder> TensorsOfSlime(const std::string& path, const Checkpoint& base) {
  const std::string index_path = (fs::path(path) / kSlimeIndexName).string();
  DELTAWIRE_ASSIGN(const auto text, MapFile(index_path, false));
  auto index = interchange::ParseSlimeIndex(AllBytes(*text));
  if (!index) return Fail(index.error().Within(index_path));
  DELTAWIRE_TRY(CheckSlimeState(base.path(), *index));

  std::set<std::string> names;
  for (const auto& [tensor, file] : index->files) names.insert(file);
  std::vector<std::shared_ptr<Memory>> files;
  std::map<std::string, interchange::SlimeTensor> found;
  for (const std::string& name : names) {
    const std::string file_path = (fs::path(path) / name).string();
    DELTAWIRE_ASSIGN(auto file, MapFile(file_path, false));
    auto tensors = interchange::ParseSlimeFile(AllBytes(*file), index->checksum);
    if (!tensors) return Fail(tensors.error().Within(file_path));
    for (auto& tensor : *tensors) {
      const auto listed = index->files.find(tensor.name);
      if (listed == index->files.end() || listed->second != name) {
        return Fail(Code::kCorrupt, "tensor {} is in {}, but {} says {}; the delta is not consistent",
                    Quoted(tensor.name), name, index_path,
                    listed == index->files.end() ? "nothing of it" : listed->second);
      }
      DELTAWIRE_TRY(TensorOf(base, tensor.name));
      std::string key = tensor.name;
      found.emplace(std::move(key), std::move(tensor));
    }
    files.push_back(std::move(file));
  }
  for (const auto& [tensor, file] : index->files) {
    if (found.contains(tensor)) continue;
    return Fail(Code::kCorrupt, "tensor {} should be in {} by {}, but is not; the delta is incomplete",
                Quoted(tensor), file, index_path);
  }
  auto tensors =
      std::make_unique<SlimeTensors>(std::move(files), *index, std::move(found), base.tensors().size());
  return SlimeFolder{*std::move(index), std::move(tensors)};
}

}  // namespace deltawire::pubsub
