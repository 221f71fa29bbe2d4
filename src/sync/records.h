// A manifest together with what identifies it.
#pragma once

#include <cstdint>
#include <string>

#include "format/manifest.h"

namespace deltawire::sync {

// A version of the catalog. sha256 (64 hexadecimal digits) is of the manifest's bytes in the store: what the
// manifests that build on it, and its anchor, name.
struct VersionRecord {
  format::Manifest manifest;
  std::string sha256;

  uint64_t number() const { return manifest.number; }
  friend bool operator==(const VersionRecord&, const VersionRecord&) = default;
};

}  // namespace deltawire::sync
