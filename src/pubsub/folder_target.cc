#include "pubsub/folder_target.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "pubsub/file_io.h"
#include "pubsub/journal.h"

namespace deltawire::pubsub {
namespace {

namespace fs = std::filesystem;

// A run's anchor is what everybody else starts from: patched in place it would be lost. A copy of it is fine.
Status RefuseAnchor(const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::is_directory(path, error) ? fs::path(path) : fs::absolute(path).parent_path();
  const fs::path real = fs::weakly_canonical(folder, error);
  const fs::path run = real.parent_path().parent_path();
  if (real.parent_path().filename() != "anchors" || !fs::is_directory(run / "manifests", error)) return {};
  return Fail(
      Code::kInvalidArgument,
      "{} is an anchor of a run, which a receiver must not patch; copy it, or follow into a new folder",
      path);
}

}  // namespace

Result<std::unique_ptr<FolderTarget>> FolderTarget::Open(const std::string& path) {
  std::unique_ptr<FolderTarget> target(new FolderTarget());
  std::error_code error;
  target->state_folder_ =
      fs::is_directory(path, error) ? (fs::path(path) / ".deltawire").string() : path + ".deltawire";
  if (!fs::exists(path, error)) return Fail(Code::kNotFound, "{} does not exist", path);
  DELTAWIRE_TRY(RefuseAnchor(path));
  DELTAWIRE_TRY(target->Lock());
  DELTAWIRE_ASSIGN(target->checkpoint_, Checkpoint::Open(path, true));
  DELTAWIRE_TRY(target->Recover());
  return target;
}

FolderTarget::~FolderTarget() {
  if (lock_ >= 0) close(lock_);
}

Status FolderTarget::Lock() {
  if (mkdir(state_folder_.c_str(), 0755) != 0 && errno != EEXIST)
    return SystemError("create", state_folder_, errno);
  const std::string path = state_folder_ + "/lock";
  lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) return SystemError("open", path, errno);
  // The lock ends with the process that holds it, however it ends.
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    return Fail(Code::kExists,
                "another process follows a run into this checkpoint (it holds {}); stop it first", path);
  }
  return {};
}

Status FolderTarget::Recover() {
  const std::string path = state_folder_ + "/journal";
  const device::Backends backends = device::HostBackends();
  const auto apply = [&](const JournalBlock& block) -> Status {
    for (const std::string& name : block.names) {
      const TensorView* view = checkpoint_->Find(name);
      if (view == nullptr) continue;  // an alias that this checkpoint does not store
      if (!BoxInside(block.box, view->shape)) {
        return Fail(Code::kMismatch,
                    "tensor {} has shape {}, the journal writes {}; the checkpoint was replaced: remove {}",
                    name, ShapeText(view->shape), BoxText(block.box), path);
      }
      const device::Block at(backends, *view, block.box, device::CastOfWidth(DtypeBytes(view->dtype)), 0);
      if (block.dense) {
        at.Write(block.bits);
      } else {
        at.Scatter(block.positions, block.bits);
      }
    }
    return {};
  };
  const auto header = ReadJournal(path, apply);
  if (!header && header.error().code() != Code::kCorrupt) return Fail(header.error());
  if (header && *header) {
    DELTAWIRE_TRY(checkpoint_->Sync());
    DELTAWIRE_TRY(WriteState((*header)->run, (*header)->number, (*header)->digest));
    recovered_ = true;
  }
  return RemoveFileDurably(path);
}

std::vector<TargetTensor> FolderTarget::Targets() const {
  std::vector<TargetTensor> targets;
  for (const auto& tensor : checkpoint_->tensors()) targets.push_back({tensor.name, tensor.view});
  return targets;
}

Status FolderTarget::BeforeWrite(const Write& write) {
  return WriteJournal(state_folder_ + "/journal", write);
}

Status FolderTarget::AfterWrite(const Write& write) {
  DELTAWIRE_TRY(checkpoint_->Sync());
  DELTAWIRE_TRY(WriteState(write.run, write.version.number, write.version.digest));
  return RemoveFileDurably(state_folder_ + "/journal");
}

Status FolderTarget::WriteState(std::string_view run, uint64_t number, const Digest& digest) {
  // Run ids hold no characters that JSON escapes (format::CheckManifest).
  const std::string text =
      fmt::format("{{\"run\":\"{}\",\"number\":{},\"digest\":\"{}\"}}\n", run, number, digest.Hex());
  const ByteSpan pieces[] = {AsBytes(text)};
  return WriteFileDurably(state_folder_ + "/state.json", pieces);
}

}  // namespace deltawire::pubsub
