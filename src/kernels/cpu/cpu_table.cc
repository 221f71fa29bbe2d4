#include "kernels/kernels.h"

namespace deltawire::kernels {

const Table& CpuTable() { return RefTable(); }
const HostTable& CpuHostTable() { return RefHostTable(); }

}  // namespace deltawire::kernels
