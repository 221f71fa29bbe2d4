#include "python/errors.h"

#include <nanobind/stl/string.h>

#include <string>

namespace deltawire::python {

namespace nb = nanobind;

void BindErrors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const CoreError& e) {
      const std::string code(CodeName(e.error().code()));
      const nb::object error =
          nb::module_::import_("deltawire._errors").attr("make")(code, e.error().message());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    }
  });
}

}  // namespace deltawire::python
