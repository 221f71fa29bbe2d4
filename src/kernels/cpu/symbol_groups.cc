// One table per Highway target; those below AVX-512 leave the work to scalar loops, which are as fast there.
#include "kernels/symbol_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/symbol_groups.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/cpu/symbol_groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {

#if DELTAWIRE_HAVE_GROUPS
const SymbolGroups& TargetSymbolGroups() {
  static constexpr SymbolGroups kGroups = {
      .name = "cpu/" HWY_STR(HWY_NAMESPACE), .split = SplitGroups, .join = JoinGroups};
  return kGroups;
}
#else
const SymbolGroups& TargetSymbolGroups() { return NoSymbolGroups(); }
#endif

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltawire::kernels {

HWY_EXPORT(TargetSymbolGroups);

const SymbolGroups& CpuSymbolGroups() { return HWY_DYNAMIC_DISPATCH(TargetSymbolGroups)(); }

const SymbolGroups& NoSymbolGroups() {
  static constexpr SymbolGroups kNone = {
      .name = "none",
      .split = [](const uint32_t*, const uint16_t*, uint32_t, uint32_t, uint8_t*, BitSink*, uint16_t*,
                  uint32_t*) { return uint32_t{0}; },
      .join = [](const uint8_t*, uint32_t, BitSource*, uint64_t*, uint32_t*, uint16_t*, uint32_t*,
                 uint32_t*) { return uint32_t{0}; }};
  return kNone;
}

}  // namespace deltawire::kernels
#endif
