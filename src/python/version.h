// What a publish or an update reports, as Python reads it.
#pragma once

#include <nanobind/nanobind.h>

namespace deltawire::python {

void BindVersion(nanobind::module_& module);

}  // namespace deltawire::python
