// Products fuse with sums; compiled with -ffp-contract=fast.
#include "stress/orders-inl.h"

namespace deltawire::stress {

StepLoop ContractedLoop(Order order) { return ChooseLoop(order); }

}  // namespace deltawire::stress
