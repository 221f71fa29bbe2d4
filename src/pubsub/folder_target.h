// A checkpoint folder (or file) on disk as a receiver: patched in place, old or new after a crash at any
// byte.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pubsub/checkpoint.h"
#include "pubsub/subscriber.h"

namespace deltawire::pubsub {

// Keeps FOLDER/.deltawire (for a file: FILE.deltawire): `lock` (one process at a time), `state.json` (run,
// number, digest of what the files hold) and, during a commit, `journal` (every new bit, hashed, written and
// synced before the first write to the checkpoint). Readers of the files should not load while a commit runs.
class FolderTarget final : public CommitObserver {
 public:
  // Finishes an interrupted commit: a complete journal is applied again (it holds absolute bits), an
  // incomplete one is dropped because nothing was written then. kExists when another process holds the lock.
  static Result<std::unique_ptr<FolderTarget>> Open(const std::string& path);
  ~FolderTarget() override;

  // Tensors of the mapped files. Valid as long as this object.
  std::vector<TargetTensor> Targets() const;
  // Whether Open completed a commit that a crash had interrupted.
  bool recovered() const { return recovered_; }

  Status BeforeWrite(const Write& write) override;
  Status AfterWrite(const Write& write) override;

 private:
  FolderTarget() = default;
  Status Lock();
  Status Recover();
  Status WriteState(std::string_view run, uint64_t number, const Digest& digest);

  std::string state_folder_;
  std::optional<Checkpoint> checkpoint_;
  int lock_ = -1;
  bool recovered_ = false;
};

}  // namespace deltawire::pubsub
