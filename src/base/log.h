// Where messages go. A library in somebody's process never prints: it hands lines to the sink it was given.
#pragma once

#include <string_view>

namespace deltawire {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

class LogSink {
 public:
  virtual ~LogSink() = default;
  // May be called from any thread, one line without a newline at a time.
  virtual void Log(LogLevel level, std::string_view message) = 0;
};

// Drops everything. Stateless.
LogSink& NullLog();

}  // namespace deltawire
