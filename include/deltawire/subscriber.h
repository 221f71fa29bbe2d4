// The engine's side: keeps live tensors at exactly one verified version.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deltawire/expected.h"
#include "deltawire/version_info.h"

namespace deltawire {

// A tensor of the engine in host memory, in the served dtype. Each name of a tied tensor is given.
struct EngineTensor {
  std::string name;
  void* data = nullptr;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<int64_t> strides;  // in elements; empty: row-major
};

// One thread at a time. Only Commit, Update and Rollback write the tensors. After an error other than
// "unusable" the engine holds what it held before.
class Subscriber {
 public:
  // Does not touch the store: an engine may start before its trainer.
  static Expected<Subscriber> Open(const std::string& url, const std::vector<EngineTensor>& tensors,
                                   int threads = 0);
  // A checkpoint folder or file, patched in place; a commit that a crash interrupted is finished first.
  static Expected<Subscriber> OpenCheckpoint(const std::string& url, const std::string& path,
                                             int threads = 0);
  ~Subscriber();
  Subscriber(Subscriber&&) noexcept;
  Subscriber& operator=(Subscriber&&) noexcept;

  // nullopt before the first commit.
  std::optional<VersionInfo> version() const;
  // Fetches, checks and proves a version (nullopt: the newest) beside the serving path.
  Expected<VersionInfo> Stage(std::optional<uint64_t> number = std::nullopt);
  // The pause: writes what is staged.
  Expected<VersionInfo> Commit();
  Expected<VersionInfo> Update(std::optional<uint64_t> number = std::nullopt);
  // Back to the version before the last commit, once; then only an explicit number moves it.
  Expected<VersionInfo> Rollback();
  // Re-reads every bit.
  Expected<Done> Verify();

 private:
  struct State;
  explicit Subscriber(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace deltawire
