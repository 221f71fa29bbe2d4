#include "detect/model_watch.h"

#include <gtest/gtest.h>

#include <cstring>

namespace deltawire::detect {
namespace {

class Model : public testing::Test {
 protected:
  static constexpr uint64_t kElements = 300;

  Model() {
    const Method methods[] = {Method::kCapture, Method::kCapture, Method::kSnapshot, Method::kInversion};
    std::vector<WatchSpec> specs;
    for (int i = 0; i < 4; ++i) {
      views_.push_back(TensorView::RowMajor(AllocateHost(kElements * 4), 0, Dtype::kF32, {kElements}));
      for (uint64_t j = 0; j < kElements; ++j) At(i, j) = 1.0f + static_cast<float>(j);
      specs.push_back({{fmt::format("t{}", i), views_[i], Dtype::kBf16, *GridBlocks({kElements}, {0, 4})},
                       methods[i],
                       "",
                       0});
    }
    auto made = ModelWatch::Create(device::HostBackends(), Parallel(2), std::move(specs));
    EXPECT_TRUE(made);
    watch_ = *std::move(made);
  }

  float& At(int tensor, uint64_t element) {
    return static_cast<float*>(views_[static_cast<size_t>(tensor)].memory->handle())[element];
  }

  // A step of t3 as its optimizer does not make it: by what is said of it, nothing moves.
  void StepWrongly(uint64_t counter) {
    const TensorView m = TensorView::RowMajor(AllocateHost(kElements * 4), 0, Dtype::kF32, {kElements});
    std::memset(m.memory->handle(), 0, kElements * 4);
    At(3, 0) += 50;
    At(3, kElements - 1) += 50;
    const kernels::AdamwHyper hyper{.lr = 1e-5, .weight_decay = 0, .step = counter};
    const TensorStep step{3, {counter, AdamStep{hyper, m, views_[2]}, ""}};
    EXPECT_TRUE(watch_->AfterStep({&step, 1}));
  }

  // By tensor: elements found changed, with dense blocks counted whole. Confirmed, or else abandoned.
  std::vector<uint64_t> Collect(bool confirm = true) {
    ModelWatch::Changes changes;
    EXPECT_TRUE(watch_->Collect(changes));
    std::vector<uint64_t> found;
    ModelWatch::ChangePointers pointers(changes.size());
    for (size_t i = 0; i < changes.size(); ++i) {
      found.push_back(0);
      for (const BlockChange& change : changes[i]) {
        found.back() += change.changed.size() + change.uncertain.size() + change.dense_bits.size() / 2;
        pointers[i].push_back(change.empty() ? nullptr : &change);
      }
    }
    if (confirm) {
      EXPECT_TRUE(watch_->Confirm(pointers));
    }
    if (!confirm) watch_->Abandon(pointers);
    return found;
  }

  std::vector<TensorView> views_;
  std::unique_ptr<ModelWatch> watch_;
};

TEST_F(Model, CapturesOneTensorOrSeveralAtOnce) {
  for (const std::vector<uint32_t>& tensors : {std::vector<uint32_t>{0}, {1}, {0, 1}, {}}) {
    ASSERT_TRUE(watch_->BeginCapture(tensors));
    for (const uint32_t tensor : tensors) At(static_cast<int>(tensor), 5 + tensor) += 64;
    ASSERT_TRUE(watch_->EndCapture(tensors));
  }
  At(2, 9) = 0;
  EXPECT_EQ(Collect(), (std::vector<uint64_t>{1, 1, 1, 0}));
  EXPECT_EQ(Collect(), (std::vector<uint64_t>{0, 0, 0, 0}));
}

TEST_F(Model, CapturesOfDifferentTensorsMayOverlap) {
  const uint32_t first[] = {0};
  const uint32_t second[] = {1};
  ASSERT_TRUE(watch_->BeginCapture(first));
  At(0, 3) = -1;
  ASSERT_TRUE(watch_->BeginCapture(second));
  At(1, 4) = -1;
  ASSERT_TRUE(watch_->EndCapture(first));
  At(1, 5) = -1;
  ASSERT_TRUE(watch_->EndCapture(second));
  EXPECT_EQ(Collect(), (std::vector<uint64_t>{1, 2, 0, 0}));
}

TEST_F(Model, ACaptureThatNeverEndedIsLeftToTheFence) {
  const uint32_t first[] = {0};
  const uint32_t second[] = {1};
  ASSERT_TRUE(watch_->BeginCapture(first));
  At(0, 0) = -1;
  // The update raised; the next one captures another tensor.
  ASSERT_TRUE(watch_->BeginCapture(second));
  At(1, 0) = -1;
  ASSERT_TRUE(watch_->EndCapture(second));
  EXPECT_EQ(Collect(), (std::vector<uint64_t>{kElements / 4, 1, 0, 0}));
}

TEST_F(Model, CallsThatDoNotFitAreRefusedByName) {
  const uint32_t beyond[] = {4};
  const uint32_t snapshot[] = {2};
  const uint32_t first[] = {0};
  const uint32_t second[] = {1};
  EXPECT_EQ(watch_->BeforeStep(beyond).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(watch_->BeginCapture(beyond).error().code(), Code::kInvalidArgument);
  const Status refused = watch_->BeginCapture(snapshot);
  EXPECT_NE(refused.error().message().find("t2 is watched by snapshot"), std::string::npos);
  ASSERT_TRUE(watch_->BeginCapture(first));
  EXPECT_EQ(watch_->EndCapture(second).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(watch_->CopyBack(0, views_[1]).error().code(), Code::kInvalidArgument);
  const TensorStep step{0, {1, {}, "none"}};
  EXPECT_EQ(watch_->AfterStep({&step, 1}).error().code(), Code::kInvalidArgument);
}

TEST_F(Model, StepsWithoutARuleAndUnseenStepsGoDense) {
  const TensorStep step{3, {1, {}, "the optimizer is unknown"}};
  At(3, 0) = 99;
  ASSERT_TRUE(watch_->AfterStep({&step, 1}));
  EXPECT_EQ(Collect()[3], kElements / 4);  // only the block that really differs
  const uint64_t counters[] = {0, 0, 0, 2};
  At(3, 0) = 0;
  At(3, kElements - 1) = 0;
  watch_->CheckSteps(counters);
  EXPECT_EQ(Collect()[3], kElements / 2);
}

TEST_F(Model, ADetectorThatWasWrongIsNotBelievedAgain) {
  StepWrongly(1);
  EXPECT_EQ(Collect(), (std::vector<uint64_t>{0, 0, 0, kElements / 2})) << "two whole blocks";
  const auto demotions = watch_->Demotions();
  ASSERT_EQ(demotions.size(), 1u);
  EXPECT_EQ(demotions[0].tensor, 3u);
  EXPECT_EQ(demotions[0].method, Method::kSnapshot);
  EXPECT_NE(demotions[0].reason.find("inversion did not account for all of its change"), std::string::npos);
  const auto notes = (*watch_)[3].TakeNotes();
  // The last block holds ties, whose old bits are uncertain: it could not be checked, and is not trusted.
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("watched by snapshot from now on"), std::string::npos) << notes[0];
  // What it goes on telling is ignored, and the snapshot finds exactly what moves.
  StepWrongly(2);
  EXPECT_EQ(Collect(), (std::vector<uint64_t>{0, 0, 0, 2}));
  EXPECT_TRUE((*watch_)[3].TakeNotes().empty());
  EXPECT_EQ(watch_->Demotions().size(), 1u);
}

// A device whose memory is used up.
class FullMemory final : public Memory {
 public:
  explicit FullMemory(uint64_t bytes) : inner_(AllocateHost(bytes)) {}
  DeviceKind device() const override { return inner_->device(); }
  uint64_t size_bytes() const override { return inner_->size_bytes(); }
  void* handle() const override { return inner_->handle(); }
  Result<std::shared_ptr<Memory>> AllocateLike(uint64_t bytes) const override {
    return Fail(Code::kNoSpace, "{} bytes", bytes);
  }

 private:
  std::shared_ptr<Memory> inner_;
};

TEST_F(Model, WithoutMemoryForASnapshotADemotedTensorGoesByTheFence) {
  views_[3] = TensorView::RowMajor(std::make_shared<FullMemory>(kElements * 4), 0, Dtype::kF32, {kElements});
  std::fill_n(&At(3, 0), kElements, 1.0f);
  std::vector<WatchSpec> specs;
  for (const int i : {2, 2, 2, 3}) {
    specs.push_back({{fmt::format("t{}", i), views_[i], Dtype::kBf16, *GridBlocks({kElements}, {0, 4})},
                     i == 3 ? Method::kInversion : Method::kFence,
                     "",
                     0});
  }
  auto made = ModelWatch::Create(device::HostBackends(), Parallel(2), std::move(specs));
  ASSERT_TRUE(made) << made.error().message();
  watch_ = *std::move(made);
  for (uint64_t counter = 1; counter <= 3; ++counter) {
    StepWrongly(counter);
    EXPECT_EQ(Collect()[3], kElements / 2);
    ASSERT_EQ(watch_->Demotions().size(), 1u);
    EXPECT_EQ(watch_->Demotions()[0].method, Method::kFence);
    EXPECT_NE(watch_->Demotions()[0].reason.find("no memory for a snapshot"), std::string::npos);
  }
  EXPECT_EQ(Collect()[3], 0u);
}

TEST_F(Model, WhatADemotedTensorSentInVainIsSentAgain) {
  StepWrongly(1);
  EXPECT_EQ(Collect(false)[3], kElements / 2);
  EXPECT_EQ(Collect(false)[3], kElements / 2);
  EXPECT_EQ(Collect()[3], kElements / 2);
  StepWrongly(2);
  EXPECT_EQ(Collect(false)[3], 2u);
  StepWrongly(3);
  EXPECT_EQ(Collect()[3], 2u);
  EXPECT_EQ(Collect()[3], 0u);
}

// Host memory whose operations can be made to fail, and what is allocated like it.
class FailingMemory final : public Memory {
 public:
  FailingMemory(uint64_t bytes, std::shared_ptr<bool> fails)
      : inner_(AllocateHost(bytes)), fails_(std::move(fails)) {}
  DeviceKind device() const override { return inner_->device(); }
  uint64_t size_bytes() const override { return inner_->size_bytes(); }
  void* handle() const override { return inner_->handle(); }
  Status Check() const override {
    if (*fails_) return Fail(Code::kIo, "the device is gone");
    return {};
  }
  Result<std::shared_ptr<Memory>> AllocateLike(uint64_t bytes) const override {
    return std::make_shared<FailingMemory>(bytes, copies_fail);
  }
  std::shared_ptr<bool> copies_fail = std::make_shared<bool>(false);

 private:
  std::shared_ptr<Memory> inner_;
  std::shared_ptr<bool> fails_;
};

TEST(Snapshot, AWriteThatFailsIsReportedAtOnceAndTheBlockGoesWhole) {
  const auto memory = std::make_shared<FailingMemory>(400, std::make_shared<bool>(false));
  const TensorView live = TensorView::RowMajor(memory, 0, Dtype::kF32, {100});
  auto* values = static_cast<float*>(memory->handle());
  std::fill_n(values, 100, 1.0f);
  std::vector<WatchSpec> specs;
  specs.push_back({{"t", live, Dtype::kBf16, *GridBlocks({100}, {0, 1})}, Method::kSnapshot, "", 0});
  auto made = ModelWatch::Create(device::HostBackends(), Parallel(1), std::move(specs));
  ASSERT_TRUE(made);
  ModelWatch& watch = **made;
  for (const bool fails : {false, true, false}) {
    values[7] += 64;
    ModelWatch::Changes changes;
    ASSERT_TRUE(watch.Collect(changes));
    const BlockChange& change = changes[0][0];
    const bool after_failure = values[7] > 150;
    EXPECT_EQ(change.dense, after_failure);
    EXPECT_EQ(change.changed.size(), after_failure ? 0u : 1u);
    *memory->copies_fail = fails;
    const Status confirmed = watch.Confirm({{&change}});
    EXPECT_EQ(confirmed.has_value(), !fails);
    if (!confirmed) {
      EXPECT_EQ(confirmed.error().message(), "tensor t: the device is gone");
    }
    *memory->copies_fail = false;
  }
}

TEST_F(Model, StateOfAnotherFormIsARefusalNotAGuess) {
  const TensorView short_m = TensorView::RowMajor(AllocateHost(40), 0, Dtype::kF32, {10});
  const TensorView halves = TensorView::RowMajor(AllocateHost(kElements * 2), 0, Dtype::kF16, {kElements});
  const kernels::AdamwHyper hyper{.lr = 1e-5, .step = 1};
  const OptimizerStep wrong_shape{1, AdamStep{hyper, short_m, views_[0]}, ""};
  EXPECT_NE(MakeStepRecord(wrong_shape, {kElements}).refusal.find("exp_avg has shape"), std::string::npos);
  const OptimizerStep wrong_dtype{1, AdamStep{hyper, views_[0], halves}, ""};
  EXPECT_NE(MakeStepRecord(wrong_dtype, {kElements}).refusal.find("exp_avg_sq is F16"), std::string::npos);
  const OptimizerStep fine{1, AdamStep{hyper, views_[0], views_[1]}, ""};
  EXPECT_TRUE(MakeStepRecord(fine, {kElements}).refusal.empty());
  const OptimizerStep sgd{1, SgdStep{{.lr = 1e-3}, halves, std::nullopt}, ""};
  EXPECT_NE(MakeStepRecord(sgd, {kElements}).refusal.find("momentum_buffer is F16"), std::string::npos);
}

}  // namespace
}  // namespace deltawire::detect
