// Which process made an object whose threads it needs.
#pragma once

#include <unistd.h>

#include <memory>

namespace deltawire::python {

class OwnerProcess {
 public:
  // False in a child that was forked since.
  bool IsThisProcess() const { return getpid() == pid_; }

  // In such a child there are no workers that could finish or be joined: what they share is left to the end
  // of the process.
  template <class T>
  static void Leave(std::unique_ptr<T>& object) {
    [[maybe_unused]] const T* left = object.release();
  }

 private:
  pid_t pid_ = getpid();
};

}  // namespace deltawire::python
