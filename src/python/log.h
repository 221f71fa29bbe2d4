// Log lines of the core -> Python's logging, logger "deltawire".
#pragma once

#include <nanobind/nanobind.h>

#include "base/log.h"

namespace deltawire::python {

// May be called from any thread, also one that Python has never seen: it takes the GIL. So whoever waits for
// the core's threads must not hold it (WithoutGil). What a handler raises goes to sys.unraisablehook.
class PythonLog final : public LogSink {
 public:
  PythonLog();
  ~PythonLog() override;
  PythonLog(const PythonLog&) = delete;
  PythonLog& operator=(const PythonLog&) = delete;
  void Log(LogLevel level, std::string_view message) override;

 private:
  nanobind::object logger_;
};

}  // namespace deltawire::python
