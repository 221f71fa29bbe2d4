#include "device/backends.h"

namespace deltawire::device {

Backends HostBackends() {
  return {.host = &kernels::CpuTable(), .host_ops = &kernels::CpuHostTable(), .torch = nullptr};
}

kernels::Cast CastOfWidth(uint32_t width) {
  switch (width) {
    case 1: return kernels::Cast::kBits8;
    case 2: return kernels::Cast::kBits16;
    case 4: return kernels::Cast::kBits32;
    default: return kernels::Cast::kBits64;
  }
}

Result<kernels::Cast> CastFor(Dtype stored, Dtype served) {
  using kernels::Cast;
  if (stored == served) return CastOfWidth(DtypeBytes(stored));
  if (stored == Dtype::kF32 && served == Dtype::kBf16) return Cast::kF32ToBf16;
  if (stored == Dtype::kF32 && served == Dtype::kF16) return Cast::kF32ToF16;
  if (stored == Dtype::kBf16 && served == Dtype::kF32) return Cast::kBf16ToF32;
  if (stored == Dtype::kF16 && served == Dtype::kF32) return Cast::kF16ToF32;
  return Fail(Code::kUnsupported,
              "no cast from {} to {}; serve the stored dtype, or F32 -> BF16, F32 -> F16, BF16 -> F32, "
              "F16 -> F32",
              DtypeName(stored), DtypeName(served));
}

}  // namespace deltawire::device
