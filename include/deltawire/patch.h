// Patches between two safetensors checkpoints (files, or Hugging Face folders).
#pragma once

#include <string>

#include "deltawire/expected.h"
#include "deltawire/version_info.h"

namespace deltawire {

// Writes the patch that turns old_path into new_path.
Expected<VersionInfo> Diff(const std::string& old_path, const std::string& new_path, const std::string& out);
// Writes the checkpoint that the patch makes of base_path; out must not exist, and nothing appears there
// unless the result is proved.
Expected<VersionInfo> Apply(const std::string& base_path, const std::string& patch, const std::string& out);

}  // namespace deltawire
