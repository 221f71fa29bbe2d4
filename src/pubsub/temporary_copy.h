// A file or folder under a temporary name beside its final one: it appears there complete or not at all.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace deltawire::pubsub {

// Removes what was written unless RenameTo succeeded.
class TemporaryCopy {
 public:
  // Of `out`, whose folder exists. The name holds this process's id: what a killed one left is replaced.
  static TemporaryCopy For(const std::string& out);
  ~TemporaryCopy();
  TemporaryCopy(TemporaryCopy&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TemporaryCopy& operator=(TemporaryCopy&&) = delete;

  const std::string& path() const { return path_; }

  // A checkpoint's file or folder, links followed; without what receivers keep in it about the version that
  // it holds (.deltawire, .weight_sync), because the copy will hold another.
  Status CopyFrom(const std::string& from);
  Status MakeFolder();
  Status RenameTo(const std::string& out);

 private:
  explicit TemporaryCopy(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

// `out` as a path without slashes at its end; kExists when something is there.
Result<std::string> NewOutput(const std::string& out);
// kInvalidArgument when the patch `out` would be written over one of the checkpoints or patches that it is
// made of, or into one of the checkpoints.
Status CheckPatchOutput(const std::string& out, const std::vector<std::string>& checkpoints,
                        const std::vector<std::string>& patches = {});

}  // namespace deltawire::pubsub
