// deltawire._core: the C++ core as Python sees it.
#include <nanobind/nanobind.h>

NB_MODULE(_core, module) { module.attr("__version__") = DELTAWIRE_VERSION; }
