// deltawire::Error -> deltawire.Error: where results of the core become Python's exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <utility>

#include "base/status.h"

namespace deltawire::python {

// Carries a core error to the translator; never leaves the binding.
class CoreError final : public std::exception {
 public:
  explicit CoreError(Error error) : error_(std::move(error)) {}
  const Error& error() const { return error_; }
  const char* what() const noexcept override { return error_.message().c_str(); }

 private:
  Error error_;
};

// The value, or the error thrown.
inline void OrThrow(Status status) {
  if (!status) throw CoreError(std::move(status).error());
}
template <class T>
T OrThrow(Result<T> result) {
  if (!result) throw CoreError(std::move(result).error());
  return *std::move(result);
}

// Runs a call of the core without the GIL: kernels, files and waits must not stop other Python threads, and a
// worker of the call may need the GIL itself (torch operations, logging).
template <class F>
auto WithoutGil(F&& call) {
  nanobind::gil_scoped_release released;
  return call();
}

// Makes CoreError raise deltawire._errors.make(code, message).
void BindErrors(nanobind::module_& module);

}  // namespace deltawire::python
