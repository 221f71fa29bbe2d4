#include "detect/tensor_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/rng.h"
#include "kernels/adamw_band.h"

namespace deltawire::detect {
namespace {

const device::Backends kRef = {&kernels::RefTable(), &kernels::RefHostTable(), nullptr};

float Uniform(Rng& rng) { return static_cast<float>(rng.Next() >> 40) / static_cast<float>(1 << 24); }

// One F32 parameter trained by AdamW as torch's single-tensor loop does it, and what a receiver would hold.
class Trainee {
 public:
  Trainee(Method method, uint64_t rows, uint64_t columns, uint64_t seed,
          const device::Backends& backends = kRef)
      : rng_(seed), shape_{rows, columns} {
    const uint64_t n = rows * columns;
    for (auto* tensor : {&theta_, &m_, &v_}) {
      *tensor = TensorView::RowMajor(AllocateHost(n * 4), 0, Dtype::kF32, shape_);
    }
    for (uint64_t i = 0; i < n; ++i) {
      Theta()[i] = (Uniform(rng_) - 0.5f) * 0.08f;
      if (i % 50 == 0) Theta()[i] = 0.0f;
      if (i % 50 == 1) Theta()[i] = -0.0f;
      if (i % 50 == 2) Theta()[i] = 1e-39f;
    }
    auto made = TensorWatch::Create(backends, {"w", theta_, Dtype::kBf16, *GridBlocks(shape_, {0, 3})},
                                    method, "", 0);
    EXPECT_TRUE(made);
    watch_ = *std::move(made);
    for (uint32_t b = 0; b < Blocks(); ++b) {
      EXPECT_TRUE(watch_->Start(b));
      received_[b] = Served(b);
    }
  }

  float* Theta() { return static_cast<float*>(theta_.memory->handle()); }
  TensorWatch& watch() { return *watch_; }
  uint32_t Blocks() const { return static_cast<uint32_t>(watch_->boxes().size()); }
  uint64_t Size() const { return shape_[0] * shape_[1]; }

  std::vector<uint16_t> Served(uint32_t block) {
    std::vector<uint16_t> bits(ElementCount(watch_->boxes()[block]));
    watch_->ReadBlock(block, {reinterpret_cast<uint8_t*>(bits.data()), bits.size() * 2});
    return bits;
  }

  // Trains one step and lets the watch see it.
  void Step(double lr, double decay = 0.01) {
    const bool captured = watch_->method() == Method::kCapture;
    if (captured && !scratch_) scratch_ = AllocateHost(watch_->served_bytes() + 64);
    watch_->PlaceCapture(64);
    for (uint32_t b = 0; b < Blocks(); ++b) {
      EXPECT_TRUE(captured ? watch_->BeginCapture(b, *scratch_) : watch_->CheckFence(b));
    }
    ++step_;
    auto* m = static_cast<float*>(m_.memory->handle());
    auto* v = static_cast<float*>(v_.memory->handle());
    const auto bias1 = static_cast<float>(lr / (1 - std::pow(0.9, step_)));
    const auto bias2 = static_cast<float>(std::sqrt(1 - std::pow(0.999, step_)));
    for (uint64_t i = 0; i < Size(); ++i) {
      const float gradient = (Uniform(rng_) - 0.5f) * 1e-3f;
      Theta()[i] *= static_cast<float>(1 - lr * decay);
      m[i] += 0.1f * (gradient - m[i]);
      v[i] = 0.999f * v[i] + 0.001f * gradient * gradient;
      Theta()[i] -= bias1 * (m[i] / (std::sqrt(v[i]) / bias2 + 1e-8f));
    }
    const auto counter = static_cast<uint64_t>(step_);
    const kernels::AdamwHyper hyper{lr, decay, 0.9, 0.999, 1e-8, counter, true};
    const StepRecord record = MakeStepRecord({counter, AdamStep{hyper, m_, v_}, ""}, shape_);
    watch_->ObserveStep(record);
    for (uint32_t b = 0; watch_->NeedsInversion() && b < Blocks(); ++b)
      EXPECT_TRUE(watch_->InvertBlock(b, record));
    for (uint32_t b = 0; captured && b < Blocks(); ++b) EXPECT_TRUE(watch_->EndCapture(b, *scratch_));
  }

  // Applies the collected change to the receiver's copy and compares. Returns how many elements were sent.
  uint64_t Publish(bool durable = true) {
    uint64_t sent = 0;
    std::map<uint32_t, std::vector<uint16_t>> next = received_;
    std::vector<BlockChange> changes;
    for (uint32_t b = 0; b < Blocks(); ++b) {
      const auto collected = watch_->Collect(b);
      EXPECT_TRUE(collected) << collected.error().message();
      const BlockChange& change = *collected;
      auto& bits = next[b];
      if (change.dense) std::memcpy(bits.data(), change.dense_bits.data(), change.dense_bits.size());
      for (size_t i = 0; i < change.changed.size(); ++i) {
        EXPECT_EQ(bits[change.changed[i]], LoadLe<uint16_t>(change.old_bits.data() + 2 * i));
        bits[change.changed[i]] = LoadLe<uint16_t>(change.new_bits.data() + 2 * i);
      }
      for (size_t i = 0; i < change.uncertain.size(); ++i) {
        bits[change.uncertain[i]] = LoadLe<uint16_t>(change.uncertain_new.data() + 2 * i);
      }
      EXPECT_EQ(bits, Served(b)) << "block " << b;
      sent += change.dense ? bits.size() : change.changed.size() + change.uncertain.size();
      changes.push_back(change);
    }
    for (uint32_t b = 0; b < Blocks(); ++b) {
      const BlockChange* change = changes[b].empty() ? nullptr : &changes[b];
      if (durable) {
        EXPECT_TRUE(watch_->Confirm(b, change));
      } else {
        watch_->Abandon(b, change);
      }
    }
    if (durable) received_ = next;
    return sent;
  }

  // The weights go elsewhere, as with p.data = ...
  void Move() {
    TensorView moved = TensorView::RowMajor(AllocateHost(Size() * 4), 0, Dtype::kF32, shape_);
    std::memcpy(moved.memory->handle(), theta_.memory->handle(), Size() * 4);
    std::memset(theta_.memory->handle(), 0, Size() * 4);
    theta_ = moved;
    EXPECT_TRUE(watch_->Rebind(theta_));
  }

  int step_ = 0;

 private:
  SeededRng rng_;
  Shape shape_;
  TensorView theta_, m_, v_;
  std::shared_ptr<Memory> scratch_;
  std::unique_ptr<TensorWatch> watch_;
  std::map<uint32_t, std::vector<uint16_t>> received_;
};

class EveryMethod : public testing::TestWithParam<Method> {};

TEST_P(EveryMethod, PublishedBitsFollowTheTrainerAtAnyInterval) {
  Trainee trainee(GetParam(), 60, 41, 1);
  for (const int steps : {1, 1, 2, 4, 0, 7, 1}) {
    for (int i = 0; i < steps; ++i) trainee.Step(3e-5);
    trainee.Publish();
    EXPECT_TRUE(trainee.watch().TakeNotes().empty());
  }
}

TEST_P(EveryMethod, AFailedPublishLosesNothing) {
  Trainee trainee(GetParam(), 60, 41, 2);
  trainee.Step(1e-4);
  trainee.Publish(false);
  trainee.Step(1e-4);
  trainee.Publish(false);
  trainee.Publish(false);
  trainee.Step(1e-4);
  EXPECT_GT(trainee.Publish(), 0u);
  EXPECT_EQ(trainee.Publish(), 0u);
}

TEST_P(EveryMethod, EditsOutsideTheStepArrive) {
  Trainee trainee(GetParam(), 60, 41, 3);
  trainee.Step(1e-4);
  trainee.Theta()[100] = 7.5f;  // after the step, before the publish
  trainee.Publish();
  trainee.Theta()[2000] = -3.25f;  // between publish and step
  trainee.Step(1e-4);
  trainee.Publish();
  trainee.Theta()[5] = -trainee.Theta()[5];  // and without any step
  EXPECT_GT(trainee.Publish(), 0u);
}

INSTANTIATE_TEST_SUITE_P(TensorWatch, EveryMethod,
                         testing::Values(Method::kInversion, Method::kCapture, Method::kSnapshot,
                                         Method::kFence),
                         [](const auto& test) { return std::string(MethodName(test.param)); });

TEST(TensorWatch, CaptureKnowsEveryBase) {
  Trainee trainee(Method::kCapture, 60, 41, 7);
  const std::vector<uint16_t> before = trainee.Served(0);
  for (int i = 0; i < 5; ++i) trainee.Step(1e-4);
  const auto change = trainee.watch().Collect(0);
  ASSERT_TRUE(change);
  EXPECT_FALSE(change->dense);
  EXPECT_TRUE(change->uncertain.empty());
  const std::vector<uint16_t> after = trainee.Served(0);
  uint64_t different = 0;
  for (size_t i = 0; i < before.size(); ++i) different += before[i] != after[i] ? 1 : 0;
  EXPECT_EQ(change->changed.size(), different);
}

TEST(TensorWatch, BlockThatWentAwayAndCameBackIsNotSent) {
  Trainee trainee(Method::kInversion, 60, 41, 8);
  trainee.Theta()[7] += 1.0f;
  for (uint32_t b = 0; b < trainee.Blocks(); ++b) EXPECT_TRUE(trainee.watch().CheckFence(b));
  trainee.Theta()[7] -= 1.0f;
  EXPECT_EQ(trainee.Publish(), 0u);
  EXPECT_TRUE(trainee.watch().TakeNotes().empty());
}

TEST(TensorWatch, ReboundTensorGoesOnWhereItIsNow) {
  Trainee trainee(Method::kInversion, 60, 41, 9);
  trainee.Step(1e-5);
  trainee.Move();
  trainee.Step(1e-5);
  EXPECT_LT(trainee.Publish(), trainee.Size() / 2);
  TensorView other = TensorView::RowMajor(AllocateHost(400), 0, Dtype::kF32, {10, 10});
  EXPECT_EQ(trainee.watch().Rebind(other).error().code(), Code::kMismatch);
}

// BF16 weights with an F32 master, as mixed-precision optimizers keep them.
class CopiedBack : public testing::TestWithParam<bool> {};

TEST_P(CopiedBack, ComparesTheMasterBeforeTheCopy) {
  SeededRng rng(10);
  const Shape shape = {30, 17};
  const bool strided = GetParam();
  const uint64_t n = 30 * 17;
  // Strided: every second column of a wider tensor.
  TensorView live = TensorView::RowMajor(AllocateHost(n * 4), 0, Dtype::kBf16, shape);
  if (strided) live.strides = {34, 2};
  const TensorView master = TensorView::RowMajor(AllocateHost(n * 4), 0, Dtype::kF32, shape);
  auto* weights = static_cast<float*>(master.memory->handle());
  auto* served = static_cast<uint16_t*>(live.memory->handle());
  for (uint64_t i = 0; i < n; ++i) weights[i] = Uniform(rng) - 0.5f;
  const auto copy = [&] {
    for (uint64_t i = 0; i < n; ++i) {
      const uint32_t word = std::bit_cast<uint32_t>(weights[i]);
      served[strided ? i / 17 * 34 + i % 17 * 2 : i] =
          static_cast<uint16_t>((word + 0x7FFF + ((word >> 16) & 1)) >> 16);
    }
  };
  copy();
  const auto made = TensorWatch::Create(kRef, {"w", live, Dtype::kBf16, *GridBlocks(shape, {0, 3})},
                                        Method::kCopyBack, "", 0);
  ASSERT_TRUE(made);
  TensorWatch& watch = **made;
  for (uint32_t b = 0; b < 3; ++b) ASSERT_TRUE(watch.Start(b));
  const auto old = std::vector<uint16_t>(served, served + n);
  for (int step = 0; step < 3; ++step) {
    for (uint64_t i = 0; i < n; ++i) weights[i] += (Uniform(rng) - 0.5f) * 1e-3f;
    ASSERT_TRUE(watch.CheckMaster(master));
    for (uint32_t b = 0; b < 3; ++b) {
      ASSERT_TRUE(watch.CheckFence(b));
      ASSERT_TRUE(watch.CopyBack(b, master));
    }
    copy();
  }
  uint64_t changed = 0;
  for (uint32_t b = 0; b < 3; ++b) {
    const auto change = watch.Collect(b);
    ASSERT_TRUE(change);
    EXPECT_FALSE(change->dense);
    EXPECT_TRUE(change->uncertain.empty());
    changed += change->changed.size();
    EXPECT_TRUE(watch.Confirm(b, change->empty() ? nullptr : &*change));
  }
  EXPECT_GT(changed, 10u);
  // A copy that was not announced, and one that was announced and did not happen.
  for (const bool announced : {false, true}) {
    for (uint64_t i = 0; i < n; ++i) weights[i] *= 1.5f;
    for (uint32_t b = 0; announced && b < 3; ++b) ASSERT_TRUE(watch.CopyBack(b, master));
    if (!announced) copy();
    for (uint32_t b = 0; b < 3; ++b) {
      const auto change = watch.Collect(b);
      ASSERT_TRUE(change);
      EXPECT_EQ(change->dense, !announced);
      EXPECT_EQ(change->empty(), announced);
      EXPECT_TRUE(watch.Confirm(b, change->empty() ? nullptr : &*change));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TensorWatch, CopiedBack, testing::Bool(),
                         [](const auto& test) { return test.param ? "Strided" : "Dense"; });

TEST(TensorWatch, CaptureWatchesEveryServedWidthThatALogHolds) {
  for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kF16, Dtype::kF32}) {
    const Shape shape = {64};
    const uint64_t bytes = 64 * DtypeBytes(dtype);
    const TensorView live = TensorView::RowMajor(AllocateHost(bytes), 0, dtype, shape);
    auto* data = static_cast<uint8_t*>(live.memory->handle());
    for (uint64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(37 * i);
    const auto made =
        TensorWatch::Create(kRef, {"w", live, dtype, *GridBlocks(shape, {})}, Method::kCapture, "", 0);
    ASSERT_TRUE(made);
    ASSERT_TRUE((*made)->Start(0));
    const auto scratch = AllocateHost((*made)->served_bytes());
    ASSERT_TRUE((*made)->BeginCapture(0, *scratch));
    data[bytes - 1] ^= 0x80;
    ASSERT_TRUE((*made)->EndCapture(0, *scratch));
    const auto change = (*made)->Collect(0);
    ASSERT_TRUE(change);
    ASSERT_EQ(change->changed, std::vector<uint32_t>{63});
    EXPECT_EQ(change->old_bits.back() ^ change->new_bits.back(), 0x80);
    EXPECT_EQ(change->new_bits.size(), DtypeBytes(dtype));
  }
  const TensorView wide = TensorView::RowMajor(AllocateHost(64), 0, Dtype::kF64, {8});
  const auto refused =
      TensorWatch::Create(kRef, {"w", wide, Dtype::kF64, *GridBlocks({8}, {})}, Method::kCapture, "", 0);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
}

// Found by `deltawire stress detect` once in 2e9 steps: the float32 moment of -4.3e-41 that cancelled the
// weight was stored in BF16 as -0, and the weight of -4.3e-38 was above set Z as it was then.
TEST(TensorWatch, AWeightThatAMomentRoundedToZeroCancelledIsSent) {
  const Shape shape = {3};
  const TensorView theta = TensorView::RowMajor(AllocateHost(12), 0, Dtype::kF32, shape);
  const TensorView m = TensorView::RowMajor(AllocateHost(6), 0, Dtype::kBf16, shape);
  const TensorView v = TensorView::RowMajor(AllocateHost(6), 0, Dtype::kBf16, shape);
  auto* weights = static_cast<uint32_t*>(theta.memory->handle());
  static_cast<uint16_t*>(m.memory->handle())[1] = 0x8000;
  // The old weight of -4.3e-38; and +0 that a fused multiply-add turned into -0.
  struct Case {
    double eps;
    uint32_t before, after;
  };
  for (const auto& [eps, before, after] :
       {Case{1e-8, 0x8168E54A, 0}, Case{1e-15, 0x8168E54A, 0}, Case{1e-8, 0, 0x80000000}}) {
    weights[1] = before;
    const auto made = TensorWatch::Create(kRef, {"w", theta, Dtype::kBf16, *GridBlocks(shape, {})},
                                          Method::kInversion, "", 0);
    ASSERT_TRUE(made);
    ASSERT_TRUE((*made)->Start(0));
    weights[1] = after;
    const kernels::AdamwHyper hyper{.lr = 1e-6, .weight_decay = 0, .eps = eps};
    const StepRecord record = MakeStepRecord({1, AdamStep{hyper, m, v}, ""}, shape);
    (*made)->ObserveStep(record);
    ASSERT_TRUE((*made)->InvertBlock(0, record));
    const auto change = (*made)->Collect(0);
    ASSERT_TRUE(change);
    EXPECT_FALSE(change->dense);
    EXPECT_EQ(change->changed.size() + change->uncertain.size(), 1 + (eps < 1e-10 ? 2u : 0u));
    EXPECT_TRUE(change->changed == std::vector<uint32_t>{1} || !change->uncertain.empty());
  }
}

TEST(TensorWatch, InversionSendsFewAndCountsWhatItDidNotKnow) {
  Trainee trainee(Method::kInversion, 200, 500, 4);
  for (int i = 0; i < 30; ++i) trainee.Step(1e-6);
  trainee.Publish();
  trainee.Step(1e-6);
  EXPECT_LT(trainee.Publish(), trainee.Size() / 10);
}

TEST(TensorWatch, CounterThatJumpsOrHyperparametersOutsideTheProofGoDense) {
  Trainee trainee(Method::kInversion, 60, 41, 5);
  trainee.step_ = 3;  // as if two steps had not been seen
  trainee.Step(1e-5);
  EXPECT_EQ(trainee.Publish(), trainee.Size());
  const auto jumped = trainee.watch().TakeNotes();
  ASSERT_FALSE(jumped.empty());
  EXPECT_NE(jumped[0].find("step counter went from 0 to 4"), std::string::npos) << jumped[0];
  trainee.Step(0.5, 2.0);
  EXPECT_EQ(trainee.Publish(), trainee.Size());
  EXPECT_FALSE(trainee.watch().TakeNotes().empty());
  trainee.Step(1e-6);
  EXPECT_LT(trainee.Publish(), trainee.Size() / 2);
}

// A table whose inversion forgets every changed element of a call but the first. The digest of the block
// tells.
void ForgetfulInvert(kernels::Source theta, kernels::Source m, kernels::Source v, kernels::Moments moments,
                     const kernels::AdamwBand& band, uint32_t n, uint64_t canonical, uint64_t key,
                     uint64_t lanes[2], kernels::Inverted* out) {
  kernels::RefTable().invert_adamw(theta, m, v, moments, band, n, canonical, key, lanes, out);
  out->changed_count = std::min(out->changed_count, 1u);
  out->uncertain_count = 0;
}

TEST(TensorWatch, AMissedChangeIsNoticedWhereEveryBaseIsKnown) {
  kernels::Table forgetful = kernels::RefTable();
  forgetful.invert_adamw = ForgetfulInvert;
  const device::Backends backends = {&forgetful, &kernels::RefHostTable(), nullptr};
  Trainee trainee(Method::kInversion, 60, 41, 6, backends);
  trainee.Step(1e-4);
  EXPECT_EQ(trainee.Publish(), trainee.Size());
  EXPECT_FALSE(trainee.watch().TakeNotes().empty());
}

}  // namespace
}  // namespace deltawire::detect
