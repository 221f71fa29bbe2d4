#include "python/log.h"

#include <nanobind/stl/string.h>

#include <string>

namespace deltawire::python {

namespace nb = nanobind;

namespace {

// Levels of the logging module.
int PythonLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return 10;
    case LogLevel::kInfo: return 20;
    case LogLevel::kWarning: return 30;
    case LogLevel::kError: return 40;
  }
  return 40;
}

}  // namespace

PythonLog::PythonLog() : logger_(nb::module_::import_("logging").attr("getLogger")("deltawire")) {}

PythonLog::~PythonLog() {
  nb::gil_scoped_acquire gil;
  logger_.reset();
}

void PythonLog::Log(LogLevel level, std::string_view message) {
  nb::gil_scoped_acquire gil;
  try {
    logger_.attr("log")(PythonLevel(level), "%s", std::string(message));
  } catch (nb::python_error& e) {
    e.discard_as_unraisable("deltawire's log sink");
  }
}

}  // namespace deltawire::python
