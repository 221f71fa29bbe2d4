#include "deltawire/patch.h"

#include "api/convert.h"
#include "pubsub/patch_file.h"

namespace deltawire {

Expected<VersionInfo> Diff(const std::string& old_path, const std::string& new_path, const std::string& out) {
  return api::ToExpected(pubsub::DiffCheckpoints(old_path, new_path, out, pubsub::PatchOptions()));
}

Expected<VersionInfo> Apply(const std::string& base_path, const std::string& patch, const std::string& out) {
  return api::ToExpected(pubsub::ApplyPatch(base_path, patch, out, pubsub::PatchOptions()));
}

}  // namespace deltawire
