// Tensors as Python hands them over: an address or a torch storage, an offset, a dtype, a shape and strides.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "device/backends.h"
#include "tensor/tensor_view.h"

namespace deltawire::python {

// One storage. shared_ptr: every view of a storage shares it, and staged updates outlive Python's objects.
struct MemoryRef {
  std::shared_ptr<Memory> memory;
};

// Plain values for the binding; the view is checked where it is used.
struct TensorRef {
  TensorView view;
};

// Host kernels, and torch's operations for every other memory.
device::Backends PythonBackends();

Dtype DtypeOrThrow(const std::string& name);

// Keeps a Python object until the last copy is gone; that may happen on any thread.
std::shared_ptr<void> KeepAlive(nanobind::object object);

void BindTensor(nanobind::module_& module);

}  // namespace deltawire::python
