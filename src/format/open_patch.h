// Patches as index and value tensors, NAME.idx and NAME.val, in a stock safetensors file: TRL's delta sync
// v3, and `open` updates of ours, which are the same with a header, digests and hashes
// (docs/formats/open.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "format/inventory.h"
#include "format/update_file.h"
#include "tensor/digest.h"
#include "tensor/dtype.h"

namespace deltawire::format {

// TRL's own values of its metadata keys "format" and "version".
inline constexpr std::string_view kSparsePatchFormat = "sparse_weight_patch";
inline constexpr std::string_view kOpenFormat = "deltawire.open";
inline constexpr uint64_t kOpenVersion = 1;
// Digests of the blocks that an `open` update lists an element of, ascending by (tensor, block): 16 bytes
// each.
inline constexpr std::string_view kDigestsTensor = "deltawire.digests";

enum class IndexEncoding : uint8_t {
  kRaw,  // I32 row-major positions
  kGap,  // U16, U32 or U64: position - position before - 1, with -1 before the first
};

// One tensor of a patch. Spans lie inside the file, at any alignment.
struct OpenTensor {
  std::string name;
  Dtype index_dtype = Dtype::kU16;
  ByteSpan index;
  Dtype dtype = Dtype::kBf16;  // of the values
  ByteSpan values;
  uint64_t count = 0;  // of both
};

struct OpenPatch {
  IndexEncoding encoding = IndexEncoding::kGap;
  std::vector<OpenTensor> tensors;  // ascending by name
  // Of `open` updates; nullopt in files that others wrote. `inventory` only in standalone patches.
  std::optional<UpdateHeader> header;
  std::optional<ByteSpan> inventory;  // compressed (DecompressInventory)
  std::vector<Digest> digests;        // of the listed blocks in the new version
};

// Whether a file is a safetensors file that calls itself such a patch; reads the header only.
bool IsOpenPatch(ByteSpan file);

// Total. Container, metadata, pairing of .idx with .val, their dtypes and counts; of `open` updates also the
// content hash. kUnsupported for TRL's anchors, its older formats, nvCOMP, and another version of `open`.
// Positions are not looked at (PositionsOf).
Result<OpenPatch> ParseOpenPatch(ByteSpan file);

// The positions of one tensor of `elements` elements: strictly ascending and below it, else kCorrupt naming
// the tensor and the entry. Memory 8 bytes an entry.
Result<std::vector<uint64_t>> PositionsOf(const OpenTensor& tensor, IndexEncoding encoding,
                                          uint64_t elements);

// The inventory of an `open` update, checked like an update's.
Result<Inventory> ReadOpenInventory(const OpenPatch& patch);

// Gaps of strictly ascending positions, each in the narrowest of U16, U32 and U64 that holds all of them.
// Appends to out, returns the width's dtype.
Dtype AppendGaps(const std::vector<uint64_t>& positions, Bytes& out);

// What an `open` update says of one tensor.
struct OpenColumns {
  std::string name;
  uint64_t count = 0;
  Dtype index_dtype = Dtype::kU16;
  Bytes index;
  Dtype dtype = Dtype::kBf16;
  Bytes values;
};

struct BuiltOpen {
  UpdateFrame frame;
  Bytes data;  // between frame.head and frame.tail
};

// An `open` update, in the order of the reference writer with inventory and digests last. digests: of the
// blocks that `tensors` list an element of; frame.table is where they stand. kInvalidArgument as FrameUpdate.
Result<BuiltOpen> BuildOpen(const UpdateHeader& header, const std::vector<OpenColumns>& tensors,
                            const std::vector<Digest>& digests, const Inventory& inventory,
                            EmbedInventory embed);

}  // namespace deltawire::format
