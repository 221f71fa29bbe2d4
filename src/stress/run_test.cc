// A run's counts depend on its seed alone, and survive interruption.
#include "stress/run.h"

#include <gtest/gtest.h>

#include <set>

#include "stress/report.h"
#include "stress/run_batch.h"

namespace deltawire::stress {
namespace {

constexpr uint64_t kSeed = 7;

Progress RunTo(uint64_t end, int threads, const Subject& subject = {}, Progress progress = {}) {
  progress.seed = kSeed;
  RunOptions options;
  options.end_batch = end;
  options.parallel = Parallel(threads);
  EXPECT_TRUE(stress::Run(options, subject, SystemClock(), progress));
  return progress;
}

// Loses changes, so that there is a failure to keep.
Subject Wrong() {
  Subject subject;
  subject.adamw_band = [](kernels::AdamwHyper hyper, double moment_error) {
    hyper.lr *= 0.5;
    return kernels::MakeAdamwBand(hyper, moment_error);
  };
  return subject;
}

TEST(StressRun, ThreadsDoNotMatter) {
  const Progress one = RunTo(40, 1), two = RunTo(40, 2);
  EXPECT_EQ(one.totals, two.totals);
  EXPECT_EQ(one.totals.all.elements, 40 * kBatchElements);
  const Progress wrong = RunTo(40, 1, Wrong());
  ASSERT_TRUE(wrong.totals.first_failure);
  EXPECT_EQ(wrong.totals, RunTo(40, 2, Wrong()).totals);
}

TEST(StressRun, GoesOnWhereItWasKilled) {
  const Subject wrong = Wrong();
  const Progress whole = RunTo(30, 2, wrong);
  const Progress part = RunTo(11, 2, wrong);
  const std::string saved = ReportJson(part, false).dump();
  const auto loaded = ProgressFromJson(AsBytes(saved));
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(loaded->totals, part.totals);
  EXPECT_EQ(loaded->next_batch, 11u);
  EXPECT_EQ(loaded->seed, kSeed);
  EXPECT_EQ(RunTo(30, 2, wrong, *loaded).totals, whole.totals);
}

TEST(StressRun, AFailureIsReproducedFromItsBatch) {
  const Progress run = RunTo(20, 2, Wrong());
  ASSERT_TRUE(run.totals.first_failure);
  const auto again = RunBatch(MakePlan(kSeed, run.totals.first_failure->batch), Wrong());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->failure, run.totals.first_failure);
  std::set<std::string> names;
  for (const auto& [name, value] : again->failure->facts) names.insert(name);
  for (const char* name : {"seed", "batch", "step", "element", "order", "lr", "theta.before", "theta.after",
                           "first.stored", "second.stored", "served.before", "served.after", "verdict"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(StressRun, StopsWithACheckpoint) {
  std::stop_source stop;
  Progress progress;
  progress.seed = kSeed;
  RunOptions options;
  options.end_batch = 1'000'000;
  options.stop = stop.get_token();
  uint64_t seen = 0;
  options.checkpoint = [&](const Progress& now) -> Status {
    seen = now.next_batch;
    stop.request_stop();
    return {};
  };
  const Status status = stress::Run(options, Subject{}, SystemClock(), progress);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kCancelled);
  EXPECT_GT(seen, 0u);
  EXPECT_EQ(progress.next_batch, seen);
}

TEST(StressRun, EveryValueOfEveryDimensionIsSoonSeen) {
  std::map<std::string, std::set<std::string>, std::less<>> seen;
  for (uint64_t number = 0; number < BatchesFor(100'000'000); ++number) {
    for (auto& [dimension, value] : LabelsOf(MakePlan(kSeed, number))) {
      seen[std::string(dimension)].insert(value);
    }
  }
  EXPECT_EQ(seen["generator"].size(), static_cast<size_t>(kGenerators));
  EXPECT_EQ(seen["order"].size(), static_cast<size_t>(kOrders));
  EXPECT_EQ(seen["contraction"].size(), 2u);
  EXPECT_EQ(seen["flush"].size(), static_cast<size_t>(kFlushes));
  EXPECT_EQ(seen["moments"].size(), static_cast<size_t>(kMoments));
  EXPECT_EQ(seen["power"].size(), static_cast<size_t>(kPowers));
  EXPECT_EQ(seen["mode"].size(), static_cast<size_t>(kModes));
  EXPECT_EQ(seen["rounding"].size(), 2u);
  EXPECT_EQ(seen["kernels"].size(), 2u);
  EXPECT_EQ(seen["interval"], (std::set<std::string>{"single_step", "1", "2", "4", "8", "32"}));
  // Nine orders with four kinds of moments, three of SGD.
  EXPECT_EQ(seen["class"].size(), static_cast<size_t>(kGenerators) * (9 * 4 + 3));
}

TEST(StressReport, HasWhatTheIssueAsksFor) {
  const auto json = ReportJson(RunTo(8, 1), true);
  EXPECT_EQ(json["elements"], 8 * kBatchElements);
  EXPECT_EQ(json["false_negatives"], 0);
  EXPECT_GT(json["naive_false_negatives"], 0);
  EXPECT_TRUE(json["excess_share"].is_number());
  EXPECT_TRUE(json["uncertain_share"].is_number());
  EXPECT_TRUE(json["first_failure"].is_null());
  EXPECT_EQ(json["complete"], true);
  EXPECT_FALSE(json["by"]["class"].empty());
}

TEST(StressReport, RefusesWhatIsNotItsState) {
  const auto code = [](const std::string& text) {
    const auto progress = ProgressFromJson(AsBytes(text));
    return progress ? Code::kInternal : progress.error().code();
  };
  auto json = ReportJson(RunTo(2, 1, Wrong()), false);
  ASSERT_TRUE(ProgressFromJson(AsBytes(json.dump())));
  EXPECT_EQ(code(""), Code::kCorrupt);
  EXPECT_EQ(code("[]"), Code::kCorrupt);
  EXPECT_EQ(code("{}"), Code::kCorrupt);
  const std::string whole = json.dump();
  EXPECT_EQ(code(whole.substr(0, whole.size() / 2)), Code::kCorrupt);
  for (const char* name :
       {"seed", "next_batch", "elements", "seconds", "by", "refused", "worst_band_ratio"}) {
    auto without = json;
    without.erase(name);
    EXPECT_EQ(code(without.dump()), Code::kCorrupt) << name;
    without[name] = "?";
    EXPECT_EQ(code(without.dump()), Code::kCorrupt) << name;
  }
  auto other = json;
  other["plan_version"] = kPlanVersion + 1;
  EXPECT_EQ(code(other.dump()), Code::kMismatch);
  other = json;
  other["first_failure"]["case"] = {{"name", 1}};
  EXPECT_EQ(code(other.dump()), Code::kCorrupt);
}

}  // namespace
}  // namespace deltawire::stress
