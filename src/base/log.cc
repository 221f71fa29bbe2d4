#include "base/log.h"

namespace deltawire {
namespace {

class Discard final : public LogSink {
 public:
  void Log(LogLevel, std::string_view) override {}
};

}  // namespace

LogSink& NullLog() {
  static Discard sink;  // stateless
  return sink;
}

}  // namespace deltawire
