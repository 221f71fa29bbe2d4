// Manifests: the objects whose existence makes a version or an anchor (docs/formats/manifest.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "format/object_names.h"
#include "format/update_file.h"
#include "tensor/digest.h"

namespace deltawire::format {

inline constexpr uint64_t kManifestVersion = 1;
inline constexpr uint64_t kMaxManifestBytes = 16u << 20;

// Hashes are 64 lower-case hexadecimal digits of SHA-256; object names are relative to the run and safe.
struct ObjectRef {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;

  friend bool operator==(const ObjectRef&, const ObjectRef&) = default;
};

struct ManifestPart {
  ObjectRef object;
  std::string
      coding;  // "class", "step", "absolute", "open"; readers pass over parts whose coding they don't know
  HashedRange table;  // of deltawire.table's data in the object

  friend bool operator==(const ManifestPart&, const ManifestPart&) = default;
};

// What a version starts from.
struct BaseRef {
  enum class Kind : uint8_t {
    kNone,        // nothing: the parts are dense, or an anchor stands beside it
    kVersion,     // another version of this run
    kCheckpoint,  // weights that receivers already have, known by digest
  };
  Kind kind = Kind::kNone;
  uint64_t number = 0;        // kVersion
  std::string manifest = {};  // kVersion: SHA-256 of the base manifest's bytes
  Digest digest = {};         // kVersion, kCheckpoint: state digest

  friend bool operator==(const BaseRef&, const BaseRef&) = default;
};

// Elements: changed = proved or compared different; sent = carried by the parts of one coding; uncertain =
// sent with an unknown base; dense = sent in dense blocks; total = all served elements.
struct ManifestCounts {
  uint64_t changed = 0;
  uint64_t sent = 0;
  uint64_t uncertain = 0;
  uint64_t dense = 0;
  uint64_t total = 0;

  friend bool operator==(const ManifestCounts&, const ManifestCounts&) = default;
};

struct DetectorUse {
  std::string detector;
  std::string reason;  // why this one; empty for the preferred detector
  uint64_t tensors = 0;
  uint64_t elements = 0;

  friend bool operator==(const DetectorUse&, const DetectorUse&) = default;
};

struct Manifest {
  std::string run;
  uint64_t number = 0;
  std::string writer;            // random id of the publisher, for its lifetime
  std::string attempt;           // random id of this publish; part of its objects' names
  uint64_t created_unix_ns = 0;  // the publisher's clock; for people
  std::string inventory;         // InventoryHash
  Digest digest;                 // state digest of this version
  uint64_t steps = 0;            // optimizer steps since the previous version
  BaseRef base;
  std::optional<uint64_t> alias_of;  // a version with the same bits; no parts then
  std::vector<ManifestPart> parts;
  std::optional<ObjectRef> tensor_digests;  // a digest table
  ManifestCounts counts;
  std::vector<DetectorUse> detectors;

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

struct AnchorManifest {
  std::string run;
  uint64_t number = 0;
  std::string inventory;
  Digest digest;
  std::string manifest;          // SHA-256 of the version's manifest
  std::vector<ObjectRef> files;  // names relative to the anchor's folder: one component each
  std::optional<ObjectRef> tensor_digests;

  friend bool operator==(const AnchorManifest&, const AnchorManifest&) = default;
};

// What a parsed manifest satisfies: kInvalidArgument naming the field.
Status CheckManifest(const Manifest& manifest);
Status CheckAnchorManifest(const AnchorManifest& manifest);

// Compact JSON with sorted keys and a content hash, of a manifest that the check accepts. Equal inputs give
// equal bytes.
std::string ManifestText(const Manifest& manifest);
std::string AnchorManifestText(const AnchorManifest& manifest);

// Total. kCorrupt naming the field; kUnsupported, naming both, for another format version. Fields that format
// 0 does not define are ignored.
Result<Manifest> ParseManifest(ByteSpan text);
Result<AnchorManifest> ParseAnchorManifest(ByteSpan text);

}  // namespace deltawire::format
