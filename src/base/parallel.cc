#include "base/parallel.h"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <thread>

namespace deltawire {

struct Parallel::Workers {
  explicit Workers(int threads) : arena(threads) {}
  oneapi::tbb::task_arena arena;
};

Parallel::Parallel(int threads)
    : threads_(threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))),
      workers_(threads_ > 1 ? std::make_shared<Workers>(threads_) : nullptr) {}

void Parallel::For(uint64_t count, const std::function<void(uint64_t)>& task) const {
  if (workers_ == nullptr || count <= 1) {
    for (uint64_t i = 0; i < count; ++i) task(i);
    return;
  }
  workers_->arena.execute(
      [&] { oneapi::tbb::parallel_for(uint64_t{0}, count, task, oneapi::tbb::simple_partitioner()); });
}

}  // namespace deltawire
