// Which process made an object whose threads it needs.
#pragma once

#include <unistd.h>

namespace deltawire::python {

class OwnerProcess {
 public:
  // False in a child that was forked since.
  bool IsThisProcess() const { return getpid() == pid_; }

 private:
  pid_t pid_ = getpid();
};

}  // namespace deltawire::python
