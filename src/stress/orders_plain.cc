// Each operation rounds by itself; compiled with -ffp-contract=off.
#include "stress/orders-inl.h"

namespace deltawire::stress {

StepLoop PlainLoop(Order order) { return ChooseLoop(order); }

}  // namespace deltawire::stress
