// Any bytes as a patch of index and value tensors: an `open` update, or TRL's.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "format/open_patch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace format = deltawire::format;
  const deltawire::ByteSpan bytes(data, size);
  const auto patch = format::ParseOpenPatch(bytes);
  if (!patch) return 0;
  if (!format::IsOpenPatch(bytes)) std::abort();
  for (const auto& tensor : patch->tensors) {
    if (tensor.values.size() != tensor.count * deltawire::DtypeBytes(tensor.dtype)) std::abort();
    for (const uint64_t elements : {uint64_t{0}, uint64_t{1000}, uint64_t{1} << 40}) {
      const auto positions = format::PositionsOf(tensor, patch->encoding, elements);
      if (!positions) continue;
      if (positions->size() != tensor.count) std::abort();
      for (size_t i = 0; i < positions->size(); ++i) {
        if ((*positions)[i] >= elements || (i > 0 && (*positions)[i] <= (*positions)[i - 1])) std::abort();
      }
    }
  }
  if (!patch->header) return 0;
  (void)format::ReadOpenInventory(*patch);
  return 0;
}
