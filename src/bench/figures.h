// The groups of figures (suites.cc says which suite has which). Each adds to the report or returns the first
// error.
#pragma once

#include <string>

#include "base/status.h"
#include "bench/report.h"
#include "bench/settings.h"

namespace deltawire::bench {

// Finding changes: snapshot, AdamW inversion, digest.
Status AddDetectFigures(const Settings& settings, Report& report);
// Inversion of AdamW with BF16 moments, and of SGD.
Status AddInversionFigures(const Settings& settings, Report& report);
// Capture, on F32 and BF16 weights.
Status AddCaptureFigures(const Settings& settings, Report& report);
// What detection holds and how far memory rises, by method and publish interval.
Status AddDetectMemoryFigures(const Settings& settings, Report& report);
// Change sets to bytes and back, and their transaction on a receiver.
Status AddDeltaFigures(const Settings& settings, Report& report);
// Bytes of a patch between two real versions.
Status AddCodecFigures(const Settings& settings, Report& report);
// Encoding, decoding and applying a model's update, as multiples of memcmp and memcpy.
Status AddWireFigures(const Settings& settings, Report& report);
// The update's bytes and times beside other systems' methods on the same change, and beside the entropy.
Status AddPeerFigures(const Settings& settings, Report& report);
// Bytes a change from 0.01 % to 50 % changed.
Status AddSweepFigures(const Settings& settings, Report& report);
// From publish() to applied through a file store, with stages and memory.
Status AddEndToEndFigures(const Settings& settings, Report& report);

// Calls measure(threads, suffix) with (1, "") and (settings.threads, ".all_threads").
template <class F>
Status ForEachWidth(const Settings& settings, F&& measure) {
  DELTAWIRE_TRY(measure(1, std::string()));
  return measure(settings.threads, std::string(".all_threads"));
}

}  // namespace deltawire::bench
