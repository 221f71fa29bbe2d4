#include "delta/fold.h"
#include "pubsub/checkpoint.h"
#include "pubsub/file_io.h"
#include "pubsub/loaded_patch.h"
#include "pubsub/patch_file.h"
#include "pubsub/temporary_copy.h"

namespace deltawire::pubsub {
namespace {

// Patches of folds say this where others say who made them.
constexpr std::string_view kFoldWriter = "fold";

}  // namespace

Result<Version> FoldPatches(const std::string& base_path, const std::vector<std::string>& patches,
                            const std::string& out, const PatchOptions& options) {
  const Stopwatch watch(*options.clock);
  if (patches.empty()) return Fail(Code::kInvalidArgument, "no patch to fold");
  DELTAWIRE_TRY(CheckPatchOutput(out, {base_path}, patches));
  DELTAWIRE_ASSIGN(const Checkpoint base, Checkpoint::Open(base_path));
  DELTAWIRE_ASSIGN(const format::Inventory inventory, base.MakeInventory());
  const delta::GridIndex grid(inventory);
  std::vector<delta::ReplicaTensor> tensors;
  for (const auto& tensor : base.tensors()) tensors.push_back({{tensor.view}});
  // Only staged on, never committed: the base is mapped for reading.
  DELTAWIRE_ASSIGN(auto replica,
                   delta::Replica::Attach(options.backends, inventory, grid, tensors, options.parallel));
  delta::Fold fold(options.backends, inventory, grid, std::move(tensors), std::move(replica));

  format::UpdateHeader header;
  for (size_t i = 0; i < patches.size(); ++i) {
    DELTAWIRE_ASSIGN(const LoadedPatch patch, LoadPatch(patches[i], options.parallel));
    DELTAWIRE_TRY(
        format::CompareTensors(patch.inventory, base.Specs(), base_path, format::ExtraTensors::kRefuse));
    if (!format::StartsFrom(patch.update.header, fold.digest())) {
      return Fail(
          Code::kWrongBase,
          "patch {} of {}, {}, was made from a checkpoint with state digest {}, but {} leads to {}; give "
          "the patches in the order in which they were made",
          i + 1, patches.size(), patches[i], patch.update.header.base_digest->Hex(),
          i == 0 ? "the base " + base_path : patches[i - 1], fold.digest().Hex());
    }
    if (auto added = fold.Add(patch.update); !added) return Fail(added.error().Within(patches[i]));
    header = patch.update.header;
    if (options.progress) options.progress(i + 1, patches.size());
  }
  header.base.reset();
  header.writer = kFoldWriter;
  header.inventory = format::InventoryHash(inventory);
  DELTAWIRE_ASSIGN(const auto update,
                   fold.Encode(header, {.coding = options.coding, .embed = format::EmbedInventory::kYes},
                               options.parallel));
  const ByteSpan pieces[] = {update.frame.head, update.blocks, update.frame.tail};
  DELTAWIRE_TRY(WriteFileDurably(out, pieces));
  DELTAWIRE_ASSIGN(Version version, VerifyPatch(out, options));
  version.seconds = watch.Seconds();
  return version;
}

}  // namespace deltawire::pubsub
