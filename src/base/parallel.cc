#include "base/parallel.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <thread>

namespace deltawire {

Parallel::Parallel(int threads)
    : threads_(threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {}

void Parallel::For(uint64_t count, const std::function<void(uint64_t)>& task) const {
  if (threads_ == 1 || count <= 1) {
    for (uint64_t i = 0; i < count; ++i) task(i);
    return;
  }
  oneapi::tbb::task_arena arena(threads_);
  arena.execute(
      [&] { oneapi::tbb::parallel_for(uint64_t{0}, count, task, oneapi::tbb::simple_partitioner()); });
}

}  // namespace deltawire
