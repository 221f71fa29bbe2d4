// Which kernels serve which memory. Built by the surface that knows what it runs on, and passed down.
#pragma once

#include "base/status.h"
#include "kernels/class_walk.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"
#include "tensor/memory.h"

namespace deltawire::device {

// Tables outlive everything that uses them.
struct Backends {
  const kernels::Table* host = nullptr;
  const kernels::HostTable* host_ops = nullptr;
  const kernels::Table* torch = nullptr;  // null where no torch tensors come in
  const kernels::ClassTable* classes = &kernels::CpuClassTable();

  const kernels::Table& For(const Memory& memory) const {
    return memory.device() == DeviceKind::kTorch ? *torch : *host;
  }
};

// The fastest host kernels of this processor, and no device.
Backends HostBackends();

// Bits of 1, 2, 4 or 8 bytes served as they are.
kernels::Cast CastOfWidth(uint32_t width);
// How stored elements become served bits. kUnsupported for pairs that have no exact or standard rounding.
Result<kernels::Cast> CastFor(Dtype stored, Dtype served);

}  // namespace deltawire::device
