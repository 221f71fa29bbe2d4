// Change sets <-> `open` updates: index and value tensors that other tools read (format/open_patch.h).
#pragma once

#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "delta/decode.h"
#include "delta/encode.h"
#include "delta/grid_index.h"
#include "format/open_patch.h"

namespace deltawire::delta {

// As EncodeUpdate, which calls it for kOpen. Uncertain elements are listed like the changed ones.
// kUnsupported for a grid with a block whose elements don't follow each other in their tensor.
Result<EncodedUpdate> EncodeOpen(const format::UpdateHeader& header, const format::Inventory& inventory,
                                 const GridIndex& grid, const std::vector<ChangedTensor>& tensors,
                                 format::EmbedInventory embed);

// As DecodeUpdate, which calls it for `open` updates. `tensors` stays empty.
Result<DecodedUpdate> DecodeOpen(ByteSpan file, const format::Inventory& inventory, const GridIndex& grid,
                                 const Parallel& parallel);

}  // namespace deltawire::delta
