#include "pubsub/patch_file.h"

#include <mutex>
#include <numeric>

#include "delta/encode.h"
#include "delta/replica.h"
#include "pubsub/checkpoint.h"
#include "pubsub/file_io.h"
#include "pubsub/loaded_patch.h"
#include "pubsub/temporary_copy.h"

namespace deltawire::pubsub {
namespace {

// What standalone patches say where a run's would name run, writer and version.
constexpr std::string_view kPatchRun = "patch";
constexpr std::string_view kPatchWriter = "diff";

// Counts finished blocks for a progress callback.
class Progress {
 public:
  Progress(const PatchOptions& options, uint64_t total) : report_(options.progress), total_(total) {}
  void Step() {
    if (!report_) return;
    const std::lock_guard lock(mutex_);
    report_(++done_, total_);
  }

 private:
  const std::function<void(uint64_t, uint64_t)>& report_;
  std::mutex mutex_;
  uint64_t done_ = 0;
  uint64_t total_;
};

device::Block BlockOf(const PatchOptions& options, const TensorView& view, const Box& box,
                      std::string_view name) {
  return {options.backends, view, box, device::CastOfWidth(DtypeBytes(view.dtype)), DigestKey(name)};
}

Version Describe(const LoadedPatch& patch) {
  Version version;
  version.number = patch.update.header.number;
  version.base = patch.update.header.base;
  version.digest = patch.update.header.digest;
  for (const auto& tensor : patch.inventory.tensors) version.total += *ElementCount(tensor.shape);
  for (const auto& block : patch.update.blocks) {
    version.changed += block.changes.changed.size();
    version.uncertain += block.changes.uncertain.size();
    if (block.dense) version.dense += block.members.front().elements;
  }
  version.sent = version.changed + version.uncertain + version.dense;
  version.bytes = patch.file->size_bytes();
  return version;
}

}  // namespace

Result<Version> DiffCheckpoints(const std::string& old_path, const std::string& new_path,
                                const std::string& out, const PatchOptions& options) {
  const Stopwatch watch(*options.clock);
  DELTAWIRE_TRY(CheckPatchOutput(out, {old_path, new_path}));
  DELTAWIRE_ASSIGN(const Checkpoint was, Checkpoint::Open(old_path));
  DELTAWIRE_ASSIGN(const Checkpoint now, Checkpoint::Open(new_path));
  DELTAWIRE_ASSIGN(const format::Inventory inventory, was.MakeInventory());
  DELTAWIRE_TRY(format::CompareTensors(inventory, now.Specs(), new_path, format::ExtraTensors::kRefuse));
  const delta::GridIndex grid(inventory);

  struct Found {
    BlockChange change;
    Digest before;
    Digest after;
  };
  const auto& places = grid.places();
  std::vector<Found> found(places.size());
  Progress progress(options, places.size());
  options.parallel.For(places.size(), [&](uint64_t i) {
    const auto [tensor, block] = places[i];
    const std::string& name = inventory.tensors[tensor].name;
    const Box& box = grid.boxes(tensor)[block];
    // Mapped files may start at odd bytes: a Block takes any alignment.
    const TensorView& old_view = was.tensors()[tensor].view;
    const TensorView& new_view = now.tensors()[tensor].view;
    const device::Block old_block = BlockOf(options, old_view, box, name);
    const device::Block new_block = BlockOf(options, new_view, box, name);
    Found& result = found[i];
    result.before = old_block.DigestNow();
    result.after = new_block.DigestNow();
    if (result.before != result.after) {
      // A checkpoint's box is a run of its file unless the grid cuts columns; then it is read out first.
      Bytes bits(uint64_t{old_block.elements()} * old_block.served_width());
      old_block.Read(bits);
      new_block.Compare(*BorrowHost(bits.data(), bits.size()), 0, result.change.changed,
                        result.change.old_bits, result.change.new_bits);
    }
    progress.Step();
  });

  std::vector<delta::ChangedTensor> tensors;
  Digest base;
  Digest state;
  for (size_t i = 0; i < places.size();) {
    delta::ChangedTensor tensor{places[i].tensor, {}, {}};
    for (; i < places.size() && places[i].tensor == tensor.tensor; ++i) {
      base += found[i].before;
      tensor.after += found[i].after;
      if (!found[i].change.empty()) {
        tensor.blocks.push_back({places[i].block, std::move(found[i].change), found[i].after});
      }
    }
    state += tensor.after;
    if (!tensor.blocks.empty()) tensors.push_back(std::move(tensor));
  }

  format::UpdateHeader header;
  header.run = kPatchRun;
  header.writer = kPatchWriter;
  header.inventory = format::InventoryHash(inventory);
  header.base_digest = base;
  header.digest = state;
  const auto new_box = [&](uint32_t tensor, const Box& box) {
    return BlockOf(options, now.tensors()[tensor].view, box, inventory.tensors[tensor].name);
  };
  delta::EncodeOptions encoding{
      .coding = options.coding, .embed = format::EmbedInventory::kYes, .source = {}};
  encoding.source.read = [&](uint32_t tensor, const Box& box, MutableByteSpan bits) -> Status {
    new_box(tensor, box).Read(bits);
    return {};
  };
  encoding.source.view = [&](uint32_t tensor, const Box& box) { return new_box(tensor, box).HostBits(); };
  DELTAWIRE_ASSIGN(const auto update,
                   delta::EncodeUpdate(header, inventory, grid, tensors, encoding, options.parallel));
  const ByteSpan pieces[] = {update.frame.head, update.blocks, update.frame.tail};
  DELTAWIRE_TRY(WriteFileDurably(out, pieces));

  Version version;
  version.digest = state;
  for (const auto& tensor : tensors) {
    for (const auto& block : tensor.blocks) version.changed += block.change.changed.size();
  }
  for (const auto& tensor : inventory.tensors) version.total += *ElementCount(tensor.shape);
  version.sent = version.changed;
  version.bytes = update.size_bytes();
  version.seconds = watch.Seconds();
  return version;
}

Result<Version> ApplyPatch(const std::string& base_path, const std::string& patch_path,
                           const std::string& out_path, const PatchOptions& options) {
  const Stopwatch watch(*options.clock);
  DELTAWIRE_ASSIGN(const std::string out, NewOutput(out_path));
  DELTAWIRE_ASSIGN(const LoadedPatch patch, LoadPatch(patch_path, options.parallel));
  {
    // Before anything is copied: most refusals need only the headers.
    DELTAWIRE_ASSIGN(const Checkpoint base, Checkpoint::Open(base_path));
    DELTAWIRE_TRY(
        format::CompareTensors(patch.inventory, base.Specs(), base_path, format::ExtraTensors::kRefuse));
  }
  TemporaryCopy copy = TemporaryCopy::For(out);
  DELTAWIRE_TRY(copy.CopyFrom(base_path));
  {
    DELTAWIRE_ASSIGN(const Checkpoint target, Checkpoint::Open(copy.path(), true));
    std::vector<delta::ReplicaTensor> tensors;
    for (const auto& tensor : target.tensors()) tensors.push_back({{tensor.view}});
    DELTAWIRE_ASSIGN(auto replica, delta::Replica::Attach(options.backends, patch.inventory, *patch.grid,
                                                          std::move(tensors), options.parallel));
    if (!format::StartsFrom(patch.update.header, replica.digest())) {
      return Fail(Code::kWrongBase,
                  "the patch was made from a checkpoint with state digest {}, {} has {}; apply it to the "
                  "checkpoint it was "
                  "made from",
                  patch.update.header.base_digest->Hex(), base_path, replica.digest().Hex());
    }
    DELTAWIRE_TRY(replica.Stage(patch.update));
    DELTAWIRE_TRY(replica.Commit());
    DELTAWIRE_TRY(replica.Verify());
    DELTAWIRE_TRY(target.Sync());
  }
  DELTAWIRE_TRY(copy.RenameTo(out));
  Version version = Describe(patch);
  version.seconds = watch.Seconds();
  return version;
}

Result<Version> VerifyPatch(const std::string& patch_path, const PatchOptions& options) {
  DELTAWIRE_ASSIGN(const LoadedPatch patch, LoadPatch(patch_path, options.parallel));
  return Describe(patch);
}

Result<Digest> DigestCheckpoint(const std::string& path, const PatchOptions& options) {
  DELTAWIRE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(path));
  DELTAWIRE_ASSIGN(const format::Inventory inventory, checkpoint.MakeInventory());
  const delta::GridIndex grid(inventory);
  std::vector<Digest> digests(grid.places().size());
  Progress progress(options, digests.size());
  options.parallel.For(digests.size(), [&](uint64_t i) {
    const auto [tensor, block] = grid.places()[i];
    digests[i] = BlockOf(options, checkpoint.tensors()[tensor].view, grid.boxes(tensor)[block],
                         inventory.tensors[tensor].name)
                     .DigestNow();
    progress.Step();
  });
  return std::accumulate(digests.begin(), digests.end(), Digest{});
}

}  // namespace deltawire::pubsub
