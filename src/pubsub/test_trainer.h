// A small trainer for tests: F32 parameters moved by AdamW as torch's single-tensor loop moves them, and
// receivers whose bits are compared with it independently of any digest.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "pubsub/publisher.h"
#include "pubsub/subscriber.h"
#include "store/memory/memory_store.h"

namespace deltawire::pubsub {

class FakeClock final : public Clock {
 public:
  int64_t UnixNanos() override { return now_; }
  int64_t MonotonicNanos() override { return now_; }
  void SleepMillis(int64_t ms) override { now_ += ms * 1'000'000; }

 private:
  int64_t now_ = 1'000'000'000;
};

class TestTrainer {
 public:
  explicit TestTrainer(uint64_t seed) : rng_(seed) {
    Add("embed", {300, 16}, detect::Method::kInversion);
    Add("layer.weight", {64, 48}, detect::Method::kInversion);
    Add("layer.bias", {48}, detect::Method::kSnapshot);
    Add("buffer", {5}, detect::Method::kFence);
    Add("empty", {0, 4}, detect::Method::kSnapshot);
  }

  PublisherOptions Options(std::shared_ptr<Store> store) {
    PublisherOptions options;
    options.store = std::move(store);
    options.cast_rule = "F32 served as BF16";
    options.parallel = Parallel(2);
    options.clock = &clock_;
    options.rng = &rng_;
    return options;
  }
  // As the trainer is now: with its step counter.
  std::vector<PublishedTensor> Tensors() {
    std::vector<PublishedTensor> tensors;
    for (auto& parameter : parameters_) {
      std::vector<std::string> aliases;
      if (parameter.name == "embed") aliases.push_back("head");
      tensors.push_back({parameter.name, aliases, parameter.theta, Dtype::kBf16, parameter.method, "",
                         static_cast<uint64_t>(step_)});
    }
    return tensors;
  }
  std::unique_ptr<Publisher> Publish(PublisherOptions options) {
    auto opened = Publisher::Open(std::move(options), Tensors());
    EXPECT_TRUE(opened) << opened.error().message();
    return opened ? *std::move(opened) : nullptr;
  }

  // Trains one step; publisher (may be null) observes it.
  void Step(Publisher* publisher, double lr = 1e-4) {
    if (publisher) {
      EXPECT_TRUE(publisher->BeforeStep(kStepped));
    }
    ++step_;
    std::vector<detect::TensorStep> steps;
    const auto bias1 = static_cast<float>(lr / (1 - std::pow(0.9, step_)));
    const auto bias2 = static_cast<float>(std::sqrt(1 - std::pow(0.999, step_)));
    for (uint32_t p = 0; p < parameters_.size(); ++p) {
      Parameter& parameter = parameters_[p];
      if (parameter.method == detect::Method::kFence) continue;
      float* theta = Floats(parameter.theta);
      float* m = Floats(parameter.m);
      float* v = Floats(parameter.v);
      for (uint64_t i = 0; i < *ElementCount(parameter.theta.shape); ++i) {
        const float gradient = (Uniform() - 0.5f) * 1e-3f;
        theta[i] *= static_cast<float>(1 - lr * 0.01);
        m[i] += 0.1f * (gradient - m[i]);
        v[i] = 0.999f * v[i] + 0.001f * gradient * gradient;
        theta[i] -= bias1 * (m[i] / (std::sqrt(v[i]) / bias2 + 1e-8f));
      }
      if (parameter.method != detect::Method::kInversion) continue;
      const auto counter = static_cast<uint64_t>(step_);
      const kernels::AdamwHyper hyper{lr, 0.01, 0.9, 0.999, 1e-8, counter, true};
      steps.push_back({p, {counter, detect::AdamStep{hyper, parameter.m, parameter.v}, ""}});
    }
    if (publisher) {
      EXPECT_TRUE(publisher->AfterStep(steps));
    }
  }

  static constexpr uint32_t kStepped[] = {0, 1, 2};

  float* Weights(size_t parameter) { return Floats(parameters_[parameter].theta); }

  // What engines must hold, by name: BF16, rounded here without the kernels.
  std::map<std::string, std::vector<uint16_t>> Served() const {
    std::map<std::string, std::vector<uint16_t>> served;
    for (const auto& parameter : parameters_) {
      auto& bits = served[parameter.name];
      for (uint64_t i = 0; i < *ElementCount(parameter.theta.shape); ++i) {
        const uint32_t word = std::bit_cast<uint32_t>(Floats(parameter.theta)[i]);
        bits.push_back(static_cast<uint16_t>((word + 0x7FFF + ((word >> 16) & 1)) >> 16));
      }
    }
    return served;
  }

  FakeClock& clock() { return clock_; }

 private:
  struct Parameter {
    std::string name;
    TensorView theta, m, v;
    detect::Method method;
  };
  static float* Floats(const TensorView& view) { return static_cast<float*>(view.memory->handle()); }
  float Uniform() { return static_cast<float>(rng_.Next() >> 40) / static_cast<float>(1 << 24); }
  void Add(std::string name, Shape shape, detect::Method method) {
    const uint64_t bytes = *ElementCount(shape) * 4;
    const auto make = [&] { return TensorView::RowMajor(AllocateHost(bytes), 0, Dtype::kF32, shape); };
    parameters_.push_back({std::move(name), make(), make(), make(), method});
    for (uint64_t i = 0; i < bytes / 4; ++i) Floats(parameters_.back().theta)[i] = (Uniform() - 0.5f) * 0.08f;
  }

  SeededRng rng_;
  FakeClock clock_;
  std::vector<Parameter> parameters_;
  int step_ = 0;
};

// An engine with its own BF16 tensors, started from `weights`; the tied head is its own copy when asked for.
class TestEngine {
 public:
  TestEngine(const std::map<std::string, std::vector<uint16_t>>& weights, std::shared_ptr<Store> store,
             Clock& clock, bool clone_head = false, LogSink* log = &NullLog()) {
    const std::map<std::string, Shape> shapes = {{"embed", {300, 16}},
                                                 {"layer.weight", {64, 48}},
                                                 {"layer.bias", {48}},
                                                 {"buffer", {5}},
                                                 {"empty", {0, 4}}};
    std::vector<TargetTensor> targets;
    for (const auto& [name, bits] : weights) {
      const auto make = [&] {
        auto memory = AllocateHost(bits.size() * 2);
        if (!bits.empty()) std::memcpy(memory->handle(), bits.data(), bits.size() * 2);
        return TensorView::RowMajor(memory, 0, Dtype::kBf16, shapes.at(name));
      };
      views_[name] = make();
      targets.push_back({name, views_[name]});
      if (name == "embed") {
        views_["head"] = clone_head ? make() : views_[name];
        targets.push_back({"head", views_["head"]});
      }
    }
    SubscriberOptions options;
    options.store = std::move(store);
    options.parallel = Parallel(1);
    options.clock = &clock;
    options.log = log;
    auto opened = Subscriber::Open(options, std::move(targets));
    EXPECT_TRUE(opened) << opened.error().message();
    subscriber_ = *std::move(opened);
  }

  Subscriber* operator->() { return subscriber_.get(); }
  uint16_t* Bits(const std::string& name) { return static_cast<uint16_t*>(views_.at(name).memory->handle()); }
  std::map<std::string, std::vector<uint16_t>> Holds() {
    std::map<std::string, std::vector<uint16_t>> out;
    for (const auto& [name, view] : views_) {
      out[name].assign(Bits(name), Bits(name) + view.memory->size_bytes() / 2);
    }
    EXPECT_EQ(out["head"], out["embed"]);
    out.erase("head");
    return out;
  }

 private:
  std::map<std::string, TensorView> views_;
  std::unique_ptr<Subscriber> subscriber_;
};

}  // namespace deltawire::pubsub
