// The engine's side as Python drives it.
#pragma once

#include <nanobind/nanobind.h>

namespace deltawire::python {

void BindSubscriber(nanobind::module_& module);

}  // namespace deltawire::python
