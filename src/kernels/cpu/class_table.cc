// One table per Highway target; the first call picks the best that this processor runs.
#include "kernels/class_walk.h"

// Highway leaves this target out unless asked; the walk over classes is twice as fast with its byte permutes.
#define HWY_WANT_AVX3_DL 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/class_table.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#undef DELTAWIRE_HAVE_VECTORS
#define DELTAWIRE_HAVE_VECTORS (HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128)

#if DELTAWIRE_HAVE_VECTORS
#include "kernels/cpu/class-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

#if DELTAWIRE_HAVE_VECTORS
const ClassTable& TargetClassTable() {
  static constexpr ClassTable kTable = {
      .name = "cpu/" HWY_STR(HWY_NAMESPACE), .rank = RankInClass, .place = PlaceInBase};
  return kTable;
}
#else
const ClassTable& TargetClassTable() { return RefClassTable(); }
#endif

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {

HWY_EXPORT(TargetClassTable);

const ClassTable& CpuClassTable() { return HWY_DYNAMIC_DISPATCH(TargetClassTable)(); }

}  // namespace deltawire::kernels
#endif
