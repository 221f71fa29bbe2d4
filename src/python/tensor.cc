#include "python/tensor.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "python/errors.h"
#include "python/torch_memory.h"
#include "python/torch_table.h"

namespace deltawire::python {

namespace nb = nanobind;

namespace {

MemoryRef HostMemory(uintptr_t address, uint64_t size_bytes, nb::object owner) {
  return {BorrowHost(reinterpret_cast<void*>(address), size_bytes, KeepAlive(std::move(owner)))};
}

MemoryRef TorchMemoryOf(nb::object storage, uint64_t size_bytes) {
  return {std::make_shared<TorchMemory>(std::move(storage), size_bytes)};
}

TensorRef MakeTensor(const MemoryRef& memory, uint64_t offset_bytes, const std::string& dtype, Shape shape,
                     std::vector<int64_t> strides) {
  if (shape.size() != strides.size()) {
    throw CoreError(Error(Code::kInvalidArgument, fmt::format("a tensor has {} extents and {} strides",
                                                              shape.size(), strides.size())));
  }
  return {{memory.memory, offset_bytes, DtypeOrThrow(dtype), std::move(shape), std::move(strides)}};
}

}  // namespace

device::Backends PythonBackends() {
  device::Backends backends = device::HostBackends();
  backends.torch = &TorchTable();
  return backends;
}

Dtype DtypeOrThrow(const std::string& name) {
  const auto dtype = DtypeFromName(name);
  if (!dtype)
    throw CoreError(Error(Code::kUnsupported, fmt::format("deltawire has no dtype named {}", name)));
  return *dtype;
}

std::shared_ptr<void> KeepAlive(nb::object object) {
  PyObject* held = object.release().ptr();
  return {held, [](void* object_held) {
            nb::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(object_held));
          }};
}

void BindTensor(nb::module_& module) {
  nb::class_<MemoryRef>(module, "Memory", "One storage: host bytes, or a torch storage on any device.")
      .def_prop_ro("size_bytes", [](const MemoryRef& self) { return self.memory->size_bytes(); })
      .def(
          "check", [](const MemoryRef& self) { OrThrow(WithoutGil([&] { return self.memory->Check(); })); },
          "Raises the first failure of an operation on this storage.");
  module.def("host_memory", &HostMemory, nb::arg("address"), nb::arg("size_bytes"), nb::arg("owner").none(),
             "Bytes of this process; owner keeps them in place.");
  module.def("torch_memory", &TorchMemoryOf, nb::arg("storage"), nb::arg("size_bytes"),
             "A deltawire._torch_ops.Storage.");
  nb::class_<TensorRef>(module, "Tensor",
                        "A view of a Memory; strides in elements, dtype as safetensors names it.")
      .def(nb::new_(&MakeTensor), nb::arg("memory"), nb::arg("offset_bytes"), nb::arg("dtype"),
           nb::arg("shape"), nb::arg("strides"));
}

}  // namespace deltawire::python
