// A bounded set of worker threads that pull independent tasks.
#pragma once

#include <cstdint>
#include <functional>

namespace deltawire {

// Owns nothing but a width: tasks run in a oneTBB arena of at most `threads` workers.
class Parallel {
 public:
  // threads = 0: one per hardware thread. threads = 1: everything runs on the calling thread, in order.
  explicit Parallel(int threads = 0);

  int threads() const { return threads_; }

  // Runs task(i) once for each i in [0, count), in any order, and returns when all have returned.
  // task must not throw. Nested calls are allowed.
  void For(uint64_t count, const std::function<void(uint64_t)>& task) const;

 private:
  int threads_;
};

}  // namespace deltawire
