// Any bytes as an update, a block table, a compressed inventory and a digest table.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "format/block_table.h"
#include "format/digests.h"
#include "format/inventory.h"
#include "format/update_file.h"

using deltawire::Bytes;
using deltawire::ByteSpan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace format = deltawire::format;
  const ByteSpan bytes(data, size);
  const format::Inventory inventory = {.cast_rule = "",
                                       .tensors = {{.name = "a", .shape = {4, 6}},
                                                   {.name = "b", .dtype = deltawire::Dtype::kF32},
                                                   {.name = "c", .shape = {3, 5, 7}}}};
  if (const auto update = format::ParseUpdate(bytes)) {
    if (const auto carried = format::ReadInventory(*update)) {
      if (const auto table = format::ReadTable(*update, *carried)) {
        for (const auto& block : table->blocks)
          (void)format::CheckBlockBytes(block, format::BlockBytes(block, update->blocks));
      }
    }
  }
  // The content hash keeps most inputs from the table: it is tried by itself, for a few section sizes.
  for (const uint64_t blocks_bytes : {0, 48, 100}) {
    if (const auto table = format::ParseBlockTable(bytes, inventory, blocks_bytes)) {
      const Bytes again = format::BlockTableBytes(*table, inventory);
      if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
    }
  }
  if (const auto carried = format::DecompressInventory(bytes)) {
    if (!format::CheckInventory(*carried)) std::abort();
  }
  (void)format::ParseDigestTable(bytes, size > 16 ? (size - 16) / 16 : 0);
  return 0;
}
