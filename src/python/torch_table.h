// The kernel table for torch tensors on any device: each call is a few torch operations on one block.
#pragma once

#include "kernels/kernels.h"

namespace deltawire::python {

// Bases are TorchMemory::handle(). Functions take the GIL; what they compute is defined by kernels/ref, and
// deltawire/_torch_ops.py does it. Host arrays cross as writable memoryviews that end with the call.
const kernels::Table& TorchTable();

}  // namespace deltawire::python
