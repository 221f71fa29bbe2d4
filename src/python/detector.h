// Change detection without a store: what one rank of a trainer changed.
#pragma once

#include <nanobind/nanobind.h>

namespace deltawire::python {

void BindDetector(nanobind::module_& module);

}  // namespace deltawire::python
