// From one format of weight updates to another: the work behind `deltawire convert`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "interchange/slime_delta.h"
#include "pubsub/patch_file.h"
#include "pubsub/version.h"

namespace deltawire::pubsub {

enum class UpdateFormat : uint8_t {
  kPatch,       // deltawire's, in any coding (`open` is one)
  kCheckpoint,  // a whole checkpoint, file or folder
  kSlime,       // a version's folder of slime or miles, disk deltas version 2
  kTrl,         // TRL's delta sync version 3; read only
};
// "patch", "checkpoint", "slime", "trl".
std::string_view UpdateFormatName(UpdateFormat format);

// By the folder's index or the file's header; says nothing about the rest. kNotFound; kCorrupt when it is
// none of them.
Result<UpdateFormat> DetectUpdateFormat(const std::string& path);

struct ConvertOptions {
  PatchOptions patch = {};           // its coding is that of a patch to write
  std::optional<UpdateFormat> from;  // nullopt: detected
  UpdateFormat to = UpdateFormat::kPatch;
  // Of a slime delta to write. version: by default the number in the folder's name, "weight_v000007";
  // base_version: by default the one before.
  std::optional<uint64_t> slime_version;
  std::optional<uint64_t> slime_base_version;
  interchange::SlimeEncoding slime_encoding = interchange::SlimeEncoding::kXor;
  interchange::Checksum slime_checksum = interchange::Checksum::kXxh3;
};

struct Converted {
  UpdateFormat from = UpdateFormat::kPatch;
  Digest before;  // state digest of the base
  Version version;
};

// Applies the update `input` to the checkpoint `base_path` (in memory, tensor by tensor), checks every hash
// and checksum that the input carries, and writes to `out`, which must not exist, what `to` says. Nothing
// appears under `out` unless all of it has been checked. kWrongBase when the base is another one;
// kUnsupported for what a format can't say. Version::notes say what the input's format leaves unchecked.
Result<Converted> Convert(const std::string& input, const std::string& base_path, const std::string& out,
                          const ConvertOptions& options);

}  // namespace deltawire::pubsub
