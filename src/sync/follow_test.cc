#include "sync/follow.h"

#include "sync/test_catalog.h"

namespace deltawire::sync {
namespace {

class FollowTest : public CatalogTest {
 protected:
  // Looks through the faulty store, on the manual clock.
  Result<std::optional<uint64_t>> Wait(std::optional<uint64_t> than, int64_t timeout_ms,
                                       int64_t poll_ms = 1000, std::stop_token cancel = {}) {
    Catalog catalog(faulty_);
    return WaitForNewer(catalog, than, {timeout_ms, poll_ms}, clock_, std::move(cancel));
  }
  int64_t NowMillis() { return clock_.MonotonicNanos() / 1'000'000; }
  // Runs `action` before the nth look, each of which begins with the hint.
  void AtLook(int nth, std::function<void()> action) {
    faulty_->BeforeEach([this, nth, action = std::move(action)](const StoreCall& call) {
      if (call == StoreCall{StoreOperation::kGet, "LATEST"} && looks_++ == nth) action();
    });
  }

  int looks_ = 0;
};

TEST_F(FollowTest, WhatIsThereIsReturnedAtOnce) {
  const auto writer = NewRun();
  for (int i = 0; i < 3; ++i) Must(TryPublish(*writer));
  const auto start = NowMillis();
  EXPECT_EQ(Must(Wait(std::nullopt, 0)), 2u);
  EXPECT_EQ(Must(Wait(0, 0)), 2u);
  EXPECT_EQ(Must(Wait(1, 60'000)), 2u);
  EXPECT_EQ(NowMillis(), start);
}

TEST_F(FollowTest, TheWaitIsFinite) {
  const auto start = NowMillis();
  EXPECT_EQ(Must(Wait(std::nullopt, 2'500)), std::nullopt) << "a run that has not begun";
  EXPECT_EQ(NowMillis() - start, 2'500);
  const auto writer = NewRun();
  Must(TryPublish(*writer));
  EXPECT_EQ(Must(Wait(0, 10'000)), std::nullopt);
  EXPECT_EQ(NowMillis() - start, 12'500);
  EXPECT_EQ(Must(Wait(7, 0)), std::nullopt);
}

TEST_F(FollowTest, TheNextVersionEndsTheWait) {
  const auto writer = Must(CatalogWriter::Create(plain_, {.run = "run", .writer = "w"}, clock_, rng_));
  Must(TryPublish(*writer));
  AtLook(3, [&] { Must(TryPublish(*writer)); });
  const auto start = NowMillis();
  EXPECT_EQ(Must(Wait(0, 60'000)), 1u);
  EXPECT_EQ(NowMillis() - start, 3'000);
}

TEST_F(FollowTest, PassingFailuresAreWaitedOut) {
  Must(TryPublish(*NewRun()));
  faulty_->Add({.on = StoreOperation::kStat, .times = 4});
  EXPECT_EQ(Must(Wait(std::nullopt, 60'000)), 0u);
  faulty_->Add({.on = StoreOperation::kStat, .times = kForever});
  const auto failed = Wait(std::nullopt, 5'000);
  EXPECT_EQ(CodeOf(failed), Code::kIo);
  EXPECT_NE(failed.error().message().find("5000 ms"), std::string::npos) << failed.error().message();
}

TEST_F(FollowTest, OtherFailuresEndTheWait) {
  faulty_->Add({.on = StoreOperation::kList, .code = Code::kUnsupported});
  const auto start = NowMillis();
  EXPECT_EQ(CodeOf(Wait(std::nullopt, 60'000)), Code::kUnsupported);
  EXPECT_EQ(NowMillis(), start);
}

TEST_F(FollowTest, CancellingEndsTheWait) {
  std::stop_source source;
  AtLook(2, [&] { source.request_stop(); });
  const auto start = NowMillis();
  EXPECT_EQ(CodeOf(Wait(std::nullopt, 60'000, 1'000, source.get_token())), Code::kCancelled);
  EXPECT_LE(NowMillis() - start, 2'100);
}

TEST_F(FollowTest, NonsenseIsRefused) {
  EXPECT_EQ(CodeOf(Wait(std::nullopt, -1)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Wait(std::nullopt, 10, 0)), Code::kInvalidArgument);
}

}  // namespace
}  // namespace deltawire::sync
