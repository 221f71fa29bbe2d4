// Checkpoints on disk: their headers, and patches between them.
#pragma once

#include <nanobind/nanobind.h>

namespace deltawire::python {

void BindCheckpoint(nanobind::module_& module);

}  // namespace deltawire::python
