// Flushes subnormals to zero, read and written, on this thread while it lives.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace deltawire::stress {

class FlushScope {
 public:
  explicit FlushScope(bool flush) {
#if defined(__x86_64__)
    before_ = _mm_getcsr();
    constexpr uint32_t kFlushWritten = 0x8000, kFlushRead = 0x0040;
    if (flush) _mm_setcsr(before_ | kFlushWritten | kFlushRead);
#else
    static_cast<void>(flush);
#endif
  }
  ~FlushScope() {
#if defined(__x86_64__)
    _mm_setcsr(before_);
#endif
  }
  FlushScope(const FlushScope&) = delete;
  FlushScope& operator=(const FlushScope&) = delete;

 private:
  uint32_t before_ = 0;
};

}  // namespace deltawire::stress
