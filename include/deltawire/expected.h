// Errors of the public API. Nothing here throws.
#pragma once

#include <cassert>
#include <string>
#include <utility>
#include <variant>

namespace deltawire {

// code: a stable lower-case identifier ("wrong_base"); docs/failures.md lists them with what to do.
struct ErrorInfo {
  std::string code;
  std::string message;
};

// A value or an error. Dereferencing an Expected that holds an error is a bug of the caller.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : content_(std::move(value)) {}
  Expected(ErrorInfo error) : content_(std::move(error)) {}

  explicit operator bool() const { return content_.index() == 0; }
  T& operator*() {
    assert(content_.index() == 0);
    return std::get<0>(content_);
  }
  const T& operator*() const {
    assert(content_.index() == 0);
    return std::get<0>(content_);
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }
  const ErrorInfo& error() const {
    assert(content_.index() == 1);
    return std::get<1>(content_);
  }

 private:
  std::variant<T, ErrorInfo> content_;
};

// Success carries nothing.
struct Done {};

}  // namespace deltawire
