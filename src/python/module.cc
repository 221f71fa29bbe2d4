// deltawire._core: the C++ core as the Python package sees it. No torch: tensors come in as addresses or as
// objects of deltawire._torch_ops.
#include <nanobind/nanobind.h>

#include "python/checkpoint.h"
#include "python/detector.h"
#include "python/errors.h"
#include "python/kernels.h"
#include "python/publisher.h"
#include "python/subscriber.h"
#include "python/tensor.h"
#include "python/version.h"

NB_MODULE(_core, module) {
  module.def("version", [] { return DELTAWIRE_VERSION; }, "Version of the package that this was built as.");
  deltawire::python::BindErrors(module);
  deltawire::python::BindTensor(module);
  deltawire::python::BindKernels(module);
  deltawire::python::BindVersion(module);
  deltawire::python::BindCheckpoint(module);
  deltawire::python::BindPublisher(module);
  deltawire::python::BindDetector(module);
  deltawire::python::BindSubscriber(module);
}
