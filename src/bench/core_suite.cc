#include "bench/figures.h"

namespace deltawire::bench {

Status RunCoreSuite(const Settings& settings, Report& report, const std::function<void(std::string_view)>& begin) {
  begin("detect");
  DELTAWIRE_TRY(AddDetectFigures(settings, report));
  begin("delta");
  DELTAWIRE_TRY(AddDeltaFigures(settings, report));
  begin("codec");
  DELTAWIRE_TRY(AddCodecFigures(settings, report));
  begin("end to end");
  return AddEndToEndFigures(settings, report);
}

}  // namespace deltawire::bench
