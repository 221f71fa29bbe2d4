#include "store/probe.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "store/fault/fault_store.h"
#include "store/memory/memory_store.h"

namespace deltawire {
namespace {

TEST(ProbeStore, AllStepsHoldAndNothingIsLeft) {
  MemoryStore store(SystemClock());
  SeededRng rng(1);
  const auto steps = ProbeStore(store, rng);
  ASSERT_EQ(steps.size(), 5u);
  for (const auto& step : steps) EXPECT_TRUE(step.result) << step.what;
  EXPECT_TRUE(store.List("")->empty());
}

}  // namespace
}  // namespace deltawire
