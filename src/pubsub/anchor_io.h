// Anchors: writing the served bits as a loadable checkpoint, and reading them block by block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "delta/grid_index.h"
#include "format/inventory.h"
#include "format/manifest.h"
#include "format/safetensors.h"
#include "store/store.h"
#include "sync/catalog_writer.h"

namespace deltawire::pubsub {

// Reads the served bits of a box of an inventory tensor; the bits must not move while an anchor is written.
using BoxReader = std::function<Status(uint32_t tensor, const Box& box, MutableByteSpan bits)>;

// Streams all tensors into one or several safetensors files of about shard_bytes and, if several, their
// index. Holds one block at a time.
Status WriteAnchorTensors(sync::AnchorAttempt& anchor, const format::Inventory& inventory,
                          const BoxReader& read, uint64_t shard_bytes);

// Reads blocks of an anchor by ranges. Bits are verified by whoever compares digests (delta::Replica does);
// sizes, dtypes, shapes and names are checked here. Thread-safe after Open.
class AnchorReader {
 public:
  static Result<AnchorReader> Open(Store& store, const format::AnchorManifest& anchor,
                                   const format::Inventory& inventory);
  Status ReadBox(uint32_t tensor, const Box& box, MutableByteSpan bits) const;

 private:
  struct Place {
    std::string object;
    uint64_t offset;  // of the tensor's first byte in the object
  };
  Store* store_ = nullptr;
  const format::Inventory* inventory_ = nullptr;
  std::vector<Place> places_;  // by inventory tensor
};

}  // namespace deltawire::pubsub
