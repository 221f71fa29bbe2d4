// One table per Highway target; the first call picks the best that this processor runs.
#include "kernels/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cpu_table.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

// Highway's target without vectors gets the reference: half of the operations are missing there.
#undef DELTAWIRE_HAVE_VECTORS
#define DELTAWIRE_HAVE_VECTORS (HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128)

#if DELTAWIRE_HAVE_VECTORS
#include "kernels/cpu/adamw-inl.h"
#include "kernels/cpu/host-inl.h"
#include "kernels/cpu/move-inl.h"
#include "kernels/cpu/scan-inl.h"
#include "kernels/cpu/sgd-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

#if DELTAWIRE_HAVE_VECTORS
const Table& TargetTable() {
  static constexpr Table kTable = {
      .name = "cpu/" HWY_STR(HWY_NAMESPACE),
      .digest = Digest,
      .compare = Compare,
      .read = Read,
      .copy = Copy,
      .read_strided = ReadStrided,
      .gather = Gather,
      .scatter = Scatter,
      .write = Write,
      .invert_adamw = InvertAdamw,
      .invert_sgd = InvertSgd,
      .select_small = SelectSmall,
  };
  return kTable;
}

const HostTable& TargetHostTable() {
  static constexpr HostTable kTable = {
      .name = "cpu/" HWY_STR(HWY_NAMESPACE),
      .digest_changes = DigestChanges,
      .steps = Steps,
      .apply_steps = ApplySteps,
  };
  return kTable;
}
#else
const Table& TargetTable() { return RefTable(); }
const HostTable& TargetHostTable() { return RefHostTable(); }
#endif

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {

HWY_EXPORT(TargetTable);
HWY_EXPORT(TargetHostTable);

const Table& CpuTable() { return HWY_DYNAMIC_DISPATCH(TargetTable)(); }
const HostTable& CpuHostTable() { return HWY_DYNAMIC_DISPATCH(TargetHostTable)(); }

}  // namespace deltawire::kernels
#endif
