#include "bench/figures.h"

namespace deltawire::bench {

Status RunCoreSuite(const Settings& settings, Report& report,
                    const std::function<void(std::string_view)>& begin) {
  struct Group {
    std::string_view name;
    Status (*add)(const Settings&, Report&);
  };
  for (const Group& group : {Group{"detect", AddDetectFigures}, Group{"delta", AddDeltaFigures},
                             Group{"codec", AddCodecFigures}, Group{"e2e", AddEndToEndFigures}}) {
    if (!settings.only.empty() && settings.only != group.name) continue;
    begin(group.name);
    DELTAWIRE_TRY(group.add(settings, report));
  }
  return {};
}

}  // namespace deltawire::bench
