// Undoing one optimizer step of one tensor: kernels alone, with the digest of all served bits, and as a
// training step pays for it.
#pragma once

#include "base/status.h"
#include "bench/detect_tensor.h"
#include "bench/report.h"
#include "bench/settings.h"

namespace deltawire::bench {

Status AddAdamwInversion(const Settings& settings, const DetectTensor& tensor, Report& report);
Status AddBf16MomentsInversion(const Settings& settings, const DetectTensor& tensor, Report& report);
// With momentum, and Nesterov with decay.
Status AddSgdInversion(const Settings& settings, const DetectTensor& tensor, Report& report);

}  // namespace deltawire::bench
