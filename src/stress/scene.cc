#include "stress/scene.h"

#include <algorithm>
#include <bit>

#include "stress/flush_scope.h"

namespace deltawire::stress {
namespace {

// Small enough for the second-level cache with everything around it.
constexpr uint32_t kAloneElements = 4096;
constexpr uint32_t kTrainedElements = 2048;  // 32 steps: the longest interval fits

void Pack(const std::vector<float>& values, std::vector<uint16_t>& bits) {
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = std::bit_cast<uint32_t>(values[i]) >> 16;
}

}  // namespace

Scene::Scene(const BatchPlan& plan)
    : plan_(plan),
      rng_(plan.seed ^ (plan.number + 1) * 0xD1342543DE82EF95),
      n_(trains() || plan.interval != 0 ? kTrainedElements : kAloneElements),
      loop_(plan.contracted ? ContractedLoop(plan.order) : PlainLoop(plan.order)),
      theta_(n_),
      before_(n_),
      first_(n_),
      second_(n_),
      largest_(n_),
      stored_first_(n_),
      stored_second_(n_),
      stored_largest_(n_),
      scale_(trains() ? n_ : 0),
      mean_(trains() ? n_ : 0),
      shown_first_(n_),
      shown_second_(n_),
      first_bits_(FirstIsBf16(plan.moments) ? n_ : 0),
      second_bits_(SecondIsBf16(plan.moments) ? n_ : 0) {
  if (trains() || plan.interval != 0) Begin();
}

Noise Scene::Draw() {
  const uint64_t bits = rng_.Next();
  return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
}

Parameter Scene::Stored() {
  return {theta_.data(),          stored_first_.data(), stored_second_.data(),
          stored_largest_.data(), scale_.data(),        mean_.data()};
}

Aim Scene::MakeAim() {
  Aim aim;
  for (Noise& noise : aim.noise) noise = Draw();
  aim.sgd = IsSgd(plan_.order);
  aim.nesterov = plan_.order == Order::kSgdNesterov;
  aim.lr = scalars_.lr;
  aim.step_size = scalars_.step_size;
  aim.inverse_bc2 = 1 / scalars_.bc2;
  aim.eps = scalars_.eps;
  aim.momentum = aim.nesterov ? scalars_.momentum : 0;
  aim.decay = scalars_.decay;
  aim.inverse_c = static_cast<float>(1 / (1 - scalars_.lambda));
  aim.factor = scalars_.factor;
  aim.round_first = FirstIsBf16(plan_.moments);
  aim.round_second = SecondIsBf16(plan_.moments);
  aim.wild = plan_.generator == Generator::kWild;
  return aim;
}

Gradients Scene::MakeGradients() {
  Gradients gradients;
  for (Noise& noise : gradients.noise) noise = Draw();
  gradients.beta1 = static_cast<float>(hyper_.adamw.beta1);
  gradients.beta2 = static_cast<float>(hyper_.adamw.beta2);
  gradients.sgd = IsSgd(plan_.order);
  gradients.nesterov = plan_.order == Order::kSgdNesterov;
  if (plan_.order != Order::kSgd) gradients.momentum = scalars_.momentum;
  const bool inside = plan_.mode == Mode::kL2 || plan_.order == Order::kSgdMomentum;
  gradients.l2 = inside ? 0.01f : scalars_.decay * (gradients.nesterov ? 1.0f : 0.0f);
  gradients.maximize = plan_.mode == Mode::kMaximize;
  gradients.amsgrad = plan_.mode == Mode::kAmsgrad;
  return gradients;
}

void Scene::Begin() {
  hyper_ = DrawHyper(plan_, rng_);
  scalars_ = MakeStepScalars(plan_, hyper_, rng_);
  if (!trains()) {
    AimStep(MakeAim(), theta_.data(), first_.data(), second_.data(), n_);
    return;
  }
  Training training;
  training.troubled = plan_.generator == Generator::kSmall;
  training.deviation = training.troubled ? 1e-4f : 0.02f;
  training.beta1 = static_cast<float>(hyper_.adamw.beta1);
  training.beta2 = static_cast<float>(hyper_.adamw.beta2);
  training.warm = hyper_.adamw.step > 1;
  const Noise noise[4] = {Draw(), Draw(), Draw(), Draw()};
  BeginTraining(noise, training, Stored(), n_);
  if (FirstIsBf16(plan_.moments)) RoundToBf16(stored_first_.data(), stored_first_.data(), n_);
  if (SecondIsBf16(plan_.moments)) {
    RoundToBf16(stored_second_.data(), stored_second_.data(), n_);
    RoundToBf16(stored_largest_.data(), stored_largest_.data(), n_);
  }
}

void Scene::Step() {
  if (trains()) {
    if (taken_ > 0) ++hyper_.adamw.step;
    scalars_ = MakeStepScalars(plan_, hyper_, rng_);
    NextMoments(MakeGradients(), Stored(), {first_.data(), second_.data(), largest_.data()}, n_);
  } else {
    hyper_ = DrawHyper(plan_, rng_);
    scalars_ = MakeStepScalars(plan_, hyper_, rng_);
    if (plan_.interval != 0) {
      AimFrom(MakeAim(), theta_.data(), first_.data(), second_.data(), n_);
    } else {
      AimStep(MakeAim(), theta_.data(), first_.data(), second_.data(), n_);
    }
    largest_ = second_;
  }
  ++taken_;
  before_ = theta_;
  {
    const FlushScope flush(plan_.flush != Flush::kNowhere);
    loop_(scalars_, first_.data(), largest_.data(), theta_.data(), n_);
  }
  Store();
}

void Scene::Store() {
  const auto store = [&](bool bf16, const Floats& from, Floats& to) {
    if (bf16) {
      RoundToBf16(from.data(), to.data(), n_);
    } else {
      to = from;
    }
  };
  store(FirstIsBf16(plan_.moments), first_, stored_first_);
  store(SecondIsBf16(plan_.moments), second_, stored_second_);
  store(SecondIsBf16(plan_.moments), largest_, stored_largest_);
  shown_first_ = stored_first_;
  shown_second_ = stored_largest_;
  // What stays after a step that maximizes is the gradient, not its negative.
  if (sgd_hyper().lr < 0) {
    for (float& x : shown_first_) x = -x;
  }
  if (FirstIsBf16(plan_.moments)) Pack(shown_first_, first_bits_);
  if (SecondIsBf16(plan_.moments)) Pack(shown_second_, second_bits_);
}

kernels::SgdHyper Scene::sgd_hyper() const {
  const kernels::AdamwHyper& h = hyper_.adamw;
  const bool nesterov = plan_.order == Order::kSgdNesterov;
  kernels::SgdHyper sgd{h.lr, h.weight_decay, nesterov ? hyper_.momentum : 0};
  const bool gradient = plan_.order == Order::kSgd || nesterov;
  if (gradient && trains() && plan_.mode == Mode::kMaximize) {
    sgd.lr = -sgd.lr;
    sgd.weight_decay = -sgd.weight_decay;
    sgd.mu = -sgd.mu;
  }
  return sgd;
}

const void* Scene::first() const {
  return FirstIsBf16(plan_.moments) ? static_cast<const void*>(first_bits_.data()) : shown_first_.data();
}

const void* Scene::second() const {
  return SecondIsBf16(plan_.moments) ? static_cast<const void*>(second_bits_.data()) : shown_second_.data();
}

}  // namespace deltawire::stress
