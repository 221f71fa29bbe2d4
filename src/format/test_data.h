// A tiny model and an update of it, shared by the tests and the examples of docs/formats.
#pragma once

#include <functional>

#include "base/hash.h"
#include "format/block_table.h"
#include "format/inventory.h"
#include "format/manifest.h"
#include "format/update_file.h"

namespace deltawire::format {

inline Inventory ExampleInventory() {
  return {.cast_rule = "floating parameters to BF16",
          .tensors = {{.name = "embed.weight",
                       .aliases = {"lm_head.weight"},
                       .dtype = Dtype::kBf16,
                       .shape = {4, 2},
                       .cast = "f32->bf16"},
                      {.name = "mlp.weight",

                       .dtype = Dtype::kBf16,
                       .shape = {4, 3},
                       .grid = {.axis = 0, .pieces = 2},
                       .cast = "f32->bf16"},
                      {.name = "norm.weight", .dtype = Dtype::kF32, .shape = {2}}}};
}

// Blocks section and table: one cut block of mlp.weight under coding 2, all of norm.weight dense.
inline const Bytes kExampleBlocks = {0xAA, 0xBB, 0xCC, 0, 0, 0x80, 0x3F, 0, 0, 0, 0x40};
inline const Bytes kExampleEntropy = {0xE0, 0xE1};

inline BlockTable ExampleTable() {
  BlockTable table;
  table.tensors = {{.tensor = 2, .after = {{5, 6}}}};
  table.blocks = {{.tensor = 1,
                   .box = {.start = {2, 0}, .size = {2, 3}},
                   .coding = 2,
                   .bytes = 3,
                   .hash = Xxh3_64(ByteSpan(kExampleBlocks).first(3)),
                   .changed = 2,
                   .uncertain = 1,
                   .after = {{3, 4}}},
                  {.tensor = 2,
                   .box = {.start = {0}, .size = {2}},
                   .coding = kDenseCoding,
                   .bytes = 8,
                   .hash = Xxh3_64(ByteSpan(kExampleBlocks).subspan(3)),
                   .after = {{5, 6}}}};
  table.entropy_bytes = kExampleEntropy.size();
  table.entropy_hash = Xxh3_64(kExampleEntropy);
  AssignOffsets(table);
  return table;
}

inline UpdateHeader ExampleHeader() {
  return {.run = "run7",
          .number = 42,
          .base = 41,
          .writer = "w0",
          .inventory = InventoryHash(ExampleInventory()),
          .base_digest = Digest{{1, 2}},
          .digest = {{3, 4}}};
}

inline Manifest ExampleManifest() {
  const BuiltUpdate update =
      BuildUpdate(ExampleHeader(), ExampleTable(), kExampleBlocks, kExampleEntropy, ExampleInventory())
          .value();
  Manifest manifest;
  manifest.run = "run7";
  manifest.number = 42;
  manifest.writer = "w0";
  manifest.attempt = "a1";
  manifest.created_unix_ns = 1790000000000000000;
  manifest.inventory = InventoryHash(ExampleInventory());
  manifest.digest = {{3, 4}};
  manifest.steps = 1;
  manifest.base = {
      .kind = BaseRef::Kind::kVersion, .number = 41, .manifest = std::string(64, 'b'), .digest = {{1, 2}}};
  manifest.parts = {{.object = {.name = UpdateName(42, "a1", 0),
                                .bytes = update.file.size(),
                                .sha256 = ToHex(Sha256(update.file))},
                     .coding = "step",
                     .table = update.table}};
  manifest.counts = {.changed = 2, .sent = 5, .uncertain = 1, .dense = 2, .total = 22};
  manifest.detectors = {{.detector = "snapshot", .reason = "no optimizer", .tensors = 3, .elements = 22}};
  return manifest;
}

}  // namespace deltawire::format
