// What an input of `convert` makes of a base checkpoint, tensor by tensor, whatever format it has.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/open_patch.h"
#include "interchange/slime_delta.h"
#include "pubsub/checkpoint.h"
#include "pubsub/patch_file.h"

namespace deltawire::pubsub {

class NewTensors {
 public:
  virtual ~NewTensors() = default;
  // Whether the tensor may differ from the base's. Thread-safe, like Apply.
  virtual bool Changes(const std::string& name) const = 0;
  // bits: the base's bytes of a tensor that changes; receives the new ones. Errors name the tensor; `bits` is
  // unspecified then.
  virtual Status Apply(const std::string& name, MutableByteSpan bits) const = 0;
  // The state that all tensors together must have, where the input says so.
  virtual std::optional<Digest> digest() const { return std::nullopt; }
  // What this format does not let us check, one sentence each.
  virtual std::vector<std::string> notes() const { return {}; }
};

// Each checks, before it returns, all that needs no tensor's bits: that the input is complete and well
// formed, and that its tensors are the base's in name, dtype and shape (kMismatch).

// Another checkpoint.
Result<std::unique_ptr<NewTensors>> TensorsOfCheckpoint(const std::string& path, const Checkpoint& base);
// A patch of deltawire's in any coding, resolved and proved against the base. base outlives the result.
Result<std::unique_ptr<NewTensors>> TensorsOfPatch(const std::string& path, const Checkpoint& base,
                                                   const PatchOptions& options);
// A TRL patch. Its format names no base: that is noted.
Result<std::unique_ptr<NewTensors>> TensorsOfTrl(const std::string& path, const Checkpoint& base);

// A version's folder of slime or miles. kWrongBase when the base is one of their receivers' folders at
// another version than the delta starts from.
struct SlimeFolder {
  interchange::SlimeIndex index;
  std::unique_ptr<NewTensors> tensors;
};
Result<SlimeFolder> TensorsOfSlime(const std::string& path, const Checkpoint& base);

// Where slime's receivers keep a checkpoint folder's version, relative to it.
inline constexpr std::string_view kSlimeState = ".weight_sync/state.json";
inline constexpr std::string_view kSlimeIndexName = "model.safetensors.index.json";

}  // namespace deltawire::pubsub
