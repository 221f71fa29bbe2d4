// Disk deltas of slime and miles, version 2 (docs/interchange.md): what their index says, and one tensor's
// difference <-> bytes. Pure: files are pubsub's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/status.h"
#include "format/safetensors.h"
#include "interchange/checksum.h"

namespace deltawire::interchange {

enum class SlimeEncoding : uint8_t {
  kXor,        // new ^ old over all bytes: only for the very base, and once
  kOverwrite,  // byte positions and new bytes: idempotent; tensors below 4 GiB
};
// "xor", "overwrite".
std::string_view SlimeEncodingName(SlimeEncoding encoding);

// Versions have at least six decimal digits in names and texts: "000007".
std::string SlimeVersionText(uint64_t version);
// nullopt unless text is digits only, below 2^63.
std::optional<uint64_t> SlimeVersionFrom(std::string_view text);
// "weight_v000007" -> 7; nullopt for other names.
std::optional<uint64_t> SlimeVersionFromFolder(std::string_view folder);

// model.safetensors.index.json of a version's folder.
struct SlimeIndex {
  uint64_t version = 0;
  uint64_t base_version = 0;
  SlimeEncoding encoding = SlimeEncoding::kXor;
  Checksum checksum = Checksum::kXxh3;
  std::map<std::string, std::string> files;  // changed tensor -> data file beside the index

  friend bool operator==(const SlimeIndex&, const SlimeIndex&) = default;
};

// Whether an index is of a delta and not of a checkpoint. False for what is no index.
bool IsSlimeDelta(ByteSpan index);
// Total. kCorrupt for a malformed index or a version that is not above its base; kUnsupported, naming what is
// known, for another encoding, compression or checksum.
Result<SlimeIndex> ParseSlimeIndex(ByteSpan text);
std::string SlimeIndexText(const SlimeIndex& index);

// One tensor of a data file: its compressed difference, and the checksum of its new bytes.
struct SlimeTensor {
  std::string name;
  ByteSpan frame;  // inside the file
  std::string checksum;
};
// Total. Every tensor is U8 with one dimension and has its checksum in the metadata. kCorrupt naming it.
Result<std::vector<SlimeTensor>> ParseSlimeFile(ByteSpan file, Checksum checksum);

// A data file in two pieces, from tensors in any order.
struct SlimeFile {
  Bytes head;
  Bytes data;
};
Result<SlimeFile> BuildSlimeFile(const std::vector<SlimeTensor>& tensors);

// The compressed difference of two tensors' bytes, which are equally long: one zstd frame of level 1.
// kUnsupported for kOverwrite from 4 GiB on, whose positions would wrap.
Result<Bytes> EncodeSlime(SlimeEncoding encoding, ByteSpan base, ByteSpan now);

// Turns the base's bytes into the new ones, in place, and proves them. On error `bits` is unspecified.
// kCorrupt for a malformed difference: bytes beyond the tensor, positions that don't ascend, a wrong length;
// kWrongBase when it is well formed and the result has another checksum. Takes at most the size of the tensor
// (kXor) or five times as much (kOverwrite) of memory, whatever the frame says.
Status ApplySlime(SlimeEncoding encoding, Checksum checksum, const SlimeTensor& tensor, MutableByteSpan bits);

// <checkpoint>/.weight_sync/state.json: the version that a receiver's folder holds.
std::string SlimeStateText(uint64_t version);
Result<uint64_t> ParseSlimeState(ByteSpan text);

}  // namespace deltawire::interchange
