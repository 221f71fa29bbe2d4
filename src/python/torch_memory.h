// A torch storage on any device as core memory: the bytes are reached through torch operations only.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <utility>

#include "tensor/memory.h"

namespace deltawire::python {

// Wraps a deltawire._torch_ops.Storage. Kernels can't fail, torch operations can: the first failure is kept
// for Check(), and later calls are skipped so that one cause is reported. The GIL guards all state.
class TorchMemory final : public Memory {
 public:
  // With the GIL.
  TorchMemory(nanobind::object storage, uint64_t size_bytes);
  ~TorchMemory() override;
  TorchMemory(const TorchMemory&) = delete;
  TorchMemory& operator=(const TorchMemory&) = delete;

  DeviceKind device() const override { return DeviceKind::kTorch; }
  uint64_t size_bytes() const override { return size_; }
  // This object: what TorchTable() expects as a base.
  void* handle() const override { return const_cast<TorchMemory*>(this); }
  // Waits for the device first, so that its own late errors are seen.
  Status Check() const override;
  Result<std::shared_ptr<Memory>> AllocateLike(uint64_t size_bytes) const override;

  const nanobind::object& storage() const { return storage_; }

  // Calls method(args...) of the storage under the GIL and returns its result as T; fallback after a failure.
  template <class T, class... Args>
  T Call(const char* method, T fallback, Args&&... args) const {
    nanobind::gil_scoped_acquire gil;
    if (failure_) return fallback;
    try {
      return nanobind::cast<T>(storage_.attr(method)(std::forward<Args>(args)...));
    } catch (const nanobind::python_error& e) {
      Fail(method, nanobind::str(e.value()).c_str());
    } catch (const std::exception& e) {
      Fail(method, e.what());
    }
    return fallback;
  }

 private:
  void Fail(const char* method, const char* why) const;

  nanobind::object storage_;
  uint64_t size_;
  // Kernel tables see memory as const: a failed read is recorded too.
  mutable std::optional<Error> failure_;
};

}  // namespace deltawire::python
