// A bounded set of worker threads that pull independent tasks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace deltawire {

// Tasks run in a oneTBB arena of at most `threads` workers. Copies share it; a new one should be made once
// for a publisher or a receiver, not for a call. Safe to use from several threads.
class Parallel {
 public:
  // threads = 0: one per hardware thread. threads = 1: everything runs on the calling thread, in order.
  explicit Parallel(int threads = 0);

  int threads() const { return threads_; }

  // Runs task(i) once for each i in [0, count), in any order, and returns when all have returned.
  // task must not throw. Nested calls are allowed.
  void For(uint64_t count, const std::function<void(uint64_t)>& task) const;

 private:
  struct Workers;

  int threads_;
  // One arena for all calls: oneTBB keeps about 7 KiB of each that ever was. Null for one thread.
  // shared_ptr: copies run on the same workers.
  std::shared_ptr<Workers> workers_;
};

}  // namespace deltawire
