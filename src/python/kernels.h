// The kernel tables one by one, for doctor's audit and for tests that compare them.
#pragma once

#include <nanobind/nanobind.h>

namespace deltawire::python {

void BindKernels(nanobind::module_& module);

}  // namespace deltawire::python
