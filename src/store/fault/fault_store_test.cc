#include "store/fault/fault_store.h"

#include <gtest/gtest.h>

#include "store/memory/memory_store.h"

namespace deltawire {
namespace {

class ManualClock final : public Clock {
 public:
  int64_t UnixNanos() override { return now_; }
  int64_t MonotonicNanos() override { return now_; }
  void SleepMillis(int64_t ms) override { now_ += ms * 1'000'000; }

 private:
  int64_t now_ = 1'000'000'000;
};

class FaultStoreTest : public ::testing::Test {
 protected:
  Status Put(std::string_view name, std::string_view text) {
    return store_.Put(name, AsBytes(text), Condition::kIfAbsent);
  }

  ManualClock clock_;
  std::shared_ptr<MemoryStore> inner_ = std::make_shared<MemoryStore>(clock_);
  FaultStore store_{inner_, clock_};
};

TEST_F(FaultStoreTest, FailsTheNamedCallsOnly) {
  store_.Add(
      {.on = StoreOperation::kPut, .name_contains = "b", .nth = 1, .times = 2, .code = Code::kNoSpace});
  EXPECT_TRUE(Put("b0", "x"));
  EXPECT_TRUE(Put("a", "x"));
  EXPECT_TRUE(store_.Get("b0", 9));
  EXPECT_EQ(Put("b1", "x").error().code(), Code::kNoSpace);
  EXPECT_EQ(Put("b2", "x").error().code(), Code::kNoSpace);
  EXPECT_TRUE(Put("b3", "x"));
  EXPECT_EQ(inner_->List("")->size(), 3u);
}

TEST_F(FaultStoreTest, LosesAnswersOfWorkThatWasDone) {
  store_.Add({.kind = FaultKind::kLoseAnswer, .on = StoreOperation::kPut});
  EXPECT_EQ(Put("a", "x").error().code(), Code::kIo);
  EXPECT_TRUE(inner_->Stat("a"));
  auto writer = store_.Create("b");
  store_.Add({.kind = FaultKind::kLoseAnswer, .on = StoreOperation::kCommit});
  EXPECT_EQ((*writer)->Commit(Condition::kIfAbsent).error().code(), Code::kIo);
  EXPECT_TRUE(inner_->Stat("b"));
}

TEST_F(FaultStoreTest, TruncatesReadsAndWrites) {
  store_.Add({.kind = FaultKind::kTruncate, .on = StoreOperation::kPut, .keep_bytes = 3});
  EXPECT_TRUE(Put("a", "12345"));
  EXPECT_EQ(inner_->Stat("a")->size_bytes, 3u);
  store_.Add({.kind = FaultKind::kTruncate, .on = StoreOperation::kGet, .keep_bytes = 2});
  EXPECT_EQ(store_.Get("a", 9)->size(), 2u);
  store_.Add({.kind = FaultKind::kTruncate, .on = StoreOperation::kGetRange, .keep_bytes = 1});
  EXPECT_EQ(store_.GetRange("a", 0, 2).error().code(), Code::kCorrupt);
  store_.Add({.kind = FaultKind::kTruncate, .on = StoreOperation::kAppend, .keep_bytes = 1});
  auto writer = store_.Create("b");
  EXPECT_TRUE((*writer)->Append(AsBytes("123")));
  EXPECT_TRUE((*writer)->Commit(Condition::kIfAbsent));
  EXPECT_EQ(inner_->Stat("b")->size_bytes, 1u);
}

TEST_F(FaultStoreTest, DelaysOnTheInjectedClock) {
  store_.Add({.kind = FaultKind::kDelay, .times = kForever, .delay_ms = 250});
  const auto start = clock_.MonotonicNanos();
  EXPECT_TRUE(Put("a", "x"));
  EXPECT_TRUE(store_.List(""));
  EXPECT_EQ(clock_.MonotonicNanos() - start, 500'000'000);
}

TEST_F(FaultStoreTest, AStoreCanDieForGood) {
  store_.Add({.nth = 2, .times = kForever});
  EXPECT_TRUE(Put("a", "x"));
  EXPECT_TRUE(store_.Stat("a"));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(store_.List(""));
  store_.ClearFaults();
  EXPECT_TRUE(store_.List(""));
}

TEST_F(FaultStoreTest, RecordsCallsInOrder) {
  (void)Put("a", "x");
  auto writer = store_.Create("b");
  (void)(*writer)->Append(AsBytes("x"));
  (void)(*writer)->Commit(Condition::kIfAbsent);
  (void)store_.List("pre");
  EXPECT_EQ(store_.calls(), (std::vector<StoreCall>{{StoreOperation::kPut, "a"},
                                                    {StoreOperation::kCreate, "b"},
                                                    {StoreOperation::kAppend, "b"},
                                                    {StoreOperation::kCommit, "b"},
                                                    {StoreOperation::kList, "pre"}}));
  store_.ClearCalls();
  EXPECT_TRUE(store_.calls().empty());
}

TEST_F(FaultStoreTest, LetsTheTestActBeforeACall) {
  store_.BeforeEach([&](const StoreCall& call) {
    if (call.operation == StoreOperation::kPut)
      (void)inner_->Put(call.name, AsBytes("rival"), Condition::kIfAbsent);
  });
  EXPECT_EQ(Put("a", "x").error().code(), Code::kExists);
}

}  // namespace
}  // namespace deltawire
