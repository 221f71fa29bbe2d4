#include "pubsub/temporary_copy.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "pubsub/file_io.h"

namespace deltawire::pubsub {

namespace fs = std::filesystem;

TemporaryCopy TemporaryCopy::For(const std::string& out) {
  const std::string parent = fs::absolute(fs::path(out)).parent_path().string();
  const std::string name = fs::path(out).filename().string();
  return TemporaryCopy(fmt::format("{}/.{}.deltawire-{}", parent, name.empty() ? "out" : name, getpid()));
}

TemporaryCopy::~TemporaryCopy() {
  std::error_code error;
  if (!path_.empty()) fs::remove_all(path_, error);
}

Status TemporaryCopy::CopyFrom(const std::string& from) {
  std::error_code error;
  fs::remove_all(path_, error);  // of a killed process that had this one's id
  if (!fs::is_directory(from, error)) return CopyFile(from, path_);
  fs::create_directory(path_, error);
  constexpr auto kFollow = fs::directory_options::follow_directory_symlink;
  for (auto entry = fs::recursive_directory_iterator(from, kFollow, error); !error && entry != fs::end(entry);
       entry.increment(error)) {
    // Lexically: a Hugging Face cache holds links to files elsewhere, which become files here.
    const fs::path name = entry->path().lexically_relative(from);
    const fs::path to = fs::path(path_) / name;
    if (name == ".deltawire" || name == ".weight_sync") {
      entry.disable_recursion_pending();
    } else if (entry->is_directory(error)) {
      fs::create_directory(to, error);
    } else if (!error) {
      DELTAWIRE_TRY(CopyFile(entry->path().string(), to.string()));
    }
    if (error) break;
  }
  if (error) return SystemError("copy", from + " to " + path_, error.value());
  return {};
}

Status TemporaryCopy::MakeFolder() {
  std::error_code error;
  fs::remove_all(path_, error);
  if (!fs::create_directory(path_, error)) return SystemError("create", path_, error.value());
  return {};
}

Status TemporaryCopy::RenameTo(const std::string& out) {
  if (rename(path_.c_str(), out.c_str()) != 0) return SystemError("rename", path_, errno);
  path_.clear();
  return {};
}

Result<std::string> NewOutput(const std::string& out) {
  std::string path = out;  // "OUT/" names the folder OUT
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  std::error_code error;
  if (fs::exists(path, error))
    return Fail(Code::kExists, "{} exists already; remove it or choose another name", path);
  return path;
}

Status CheckPatchOutput(const std::string& out, const std::vector<std::string>& checkpoints,
                        const std::vector<std::string>& patches) {
  std::error_code error;
  for (const std::string& input : checkpoints) {
    if (!fs::equivalent(input, out, error) &&
        !fs::equivalent(input, fs::absolute(out).parent_path(), error)) {
      continue;
    }
    return Fail(Code::kInvalidArgument,
                "the patch {} would be written over or into the checkpoint {} that it is made of", out,
                input);
  }
  for (const std::string& input : patches) {
    if (!fs::equivalent(input, out, error)) continue;
    return Fail(Code::kInvalidArgument, "the patch {} would be written over the patch {} that it is made of",
                out, input);
  }
  return {};
}

}  // namespace deltawire::pubsub
