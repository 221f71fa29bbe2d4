#include "python/torch_memory.h"

#include <string>

namespace deltawire::python {

namespace nb = nanobind;

TorchMemory::TorchMemory(nb::object storage, uint64_t size_bytes)
    : storage_(std::move(storage)), size_(size_bytes) {}

TorchMemory::~TorchMemory() {
  nb::gil_scoped_acquire gil;
  storage_.reset();
}

Status TorchMemory::Check() const {
  Call("synchronize", 0);
  nb::gil_scoped_acquire gil;
  if (failure_) return deltawire::Fail(*failure_);
  return {};
}

Result<std::shared_ptr<Memory>> TorchMemory::AllocateLike(uint64_t size_bytes) const {
  nb::gil_scoped_acquire gil;
  try {
    return std::make_shared<TorchMemory>(storage_.attr("allocate")(size_bytes), size_bytes);
  } catch (const nb::python_error& e) {
    return deltawire::Fail(Code::kNoSpace, "{} bytes could not be allocated on the tensor's device: {}",
                           size_bytes, nb::str(e.value()).c_str());
  }
}

void TorchMemory::Fail(const char* method, const char* why) const {
  failure_ = Error(Code::kUnusable, fmt::format("torch operation {} failed: {}", method, why));
}

}  // namespace deltawire::python
