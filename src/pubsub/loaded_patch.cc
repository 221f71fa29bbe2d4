#include "pubsub/loaded_patch.h"

namespace deltawire::pubsub {

Result<LoadedPatch> LoadPatch(const std::string& path, const Parallel& parallel) {
  LoadedPatch patch;
  DELTAWIRE_ASSIGN(patch.file, MapFile(path, false));
  const ByteSpan bytes(static_cast<const uint8_t*>(patch.file->handle()), patch.file->size_bytes());
  const auto load = [&]() -> Status {
    DELTAWIRE_ASSIGN(auto head, delta::ReadPatchHead(bytes));
    patch.inventory = std::move(head.inventory);
    if (!head.header.base_digest)
      return Fail(Code::kCorrupt, "a standalone patch must name its base's digest");
    patch.grid = std::make_unique<delta::GridIndex>(patch.inventory);
    DELTAWIRE_ASSIGN(patch.update, delta::DecodeUpdate(bytes, patch.inventory, *patch.grid, parallel));
    return {};
  };
  if (auto status = load(); !status) return Fail(status.error().Within(path));
  return patch;
}

}  // namespace deltawire::pubsub
