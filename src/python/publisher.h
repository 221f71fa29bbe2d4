// The trainer's side as Python drives it.
#pragma once

#include <nanobind/nanobind.h>

namespace deltawire::python {

void BindPublisher(nanobind::module_& module);

}  // namespace deltawire::python
