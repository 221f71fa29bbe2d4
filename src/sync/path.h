// Which updates take a receiver from where it is to a version. A pure function of manifests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/manifest.h"
#include "sync/records.h"
#include "tensor/digest.h"

namespace deltawire::sync {

// What a receiver holds. Neither: nothing that any version builds on. digest: the digest of its bits, which
// says all; they may be a checkpoint's, or those of any version. version: what it committed last; it sets the
// direction, and stands for that version's digest where digest is absent.
struct Position {
  std::optional<uint64_t> version;
  std::optional<Digest> digest;
};

struct PathRequest {
  Position position;
  uint64_t target = 0;
  // Without it a target below position.version is kInvalidArgument: weights go back by explicit order only.
  bool allow_rollback = false;
  // Codings that the receiver decodes, as manifests spell them. Empty: all.
  std::vector<std::string> codings = {};
  // Versions whose patch, and anchors whose files, turned out to be missing or damaged when they were read:
  // the path goes round them.
  std::vector<uint64_t> broken_patches = {};
  std::vector<uint64_t> broken_anchors = {};
};

// What to do next, in order. kAnchor: load anchor record.number(), whatever was held before. kPatch: apply
// the parts of `record` whose coding is `coding` to the state that the step before left, or, for the first
// step, to what the receiver holds; to nothing if record's base is kNone. Versions that change no bit need no
// step.
struct Step {
  enum class Kind : uint8_t { kAnchor, kPatch };
  Kind kind = Kind::kPatch;
  VersionRecord record;                          // the version that the step leads to
  std::optional<format::AnchorManifest> anchor;  // kAnchor
  std::string coding;                            // kPatch
};

struct Path {
  std::vector<Step> steps;  // empty: the receiver holds the target's bits already
  VersionRecord target;  // number and digest to report in the end; the last step may lead to another number
  // The version whose bits the receiver holds at the start, when the path begins there (not at an anchor, a
  // dense version or a checkpoint). With equal bits under several numbers, the one nearest the target.
  std::optional<uint64_t> start;
  uint64_t bytes = 0;  // of all objects that the steps read
};

// Where the planner gets manifests. kNotFound for one that is not there; any other error is a hole too, and
// is reported if no way around it exists. What is returned must belong to the run and have the number asked
// for.
struct ManifestSource {
  std::function<Result<VersionRecord>(uint64_t number)> version;
  std::function<Result<std::vector<uint64_t>>()> anchors;  // numbers, ascending
  std::function<Result<format::AnchorManifest>(uint64_t number)> anchor;
};

// The path of the fewest bytes, then of the fewest steps; for a receiver that holds nothing, from the way in
// that is nearest to the target. The chain behind it is validated whole: each link's manifest hash, base
// digest, inventory; an alias has its original's digest; an anchor names the manifest and the digest of its
// version. Where the chain has a hole, or passes the receiver by, an anchor or a dense version (base kNone)
// above the hole is the way in. Manifests are loaded from the target backwards, no further than a cheaper
// path can start, and anchors only where one could be cheaper (an anchor has at least a byte an element): for
// a receiver that follows closely and gives its digest that is one manifest, whatever the age of the run.
// Errors, each with the remedy: kNotFound names the version that is missing; kWrongBase when nothing leads
// from what the receiver holds; kInvalidArgument for going back; kMismatch when the chain changes inventory;
// kUnsupported when the receiver decodes no coding of a version; the source's error for an invalid manifest.
// kIo from the source ends the planning at once.
Result<Path> PlanPath(const PathRequest& request, const ManifestSource& source);

}  // namespace deltawire::sync
