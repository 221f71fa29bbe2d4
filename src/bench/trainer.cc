#include "bench/trainer.h"

#include <algorithm>
#include <cmath>

#include "bench/random_weights.h"

namespace deltawire::bench {
namespace {

constexpr float kGradient = 1e-4f;

struct StepConstants {
  float decay, step_size, root_bias2, eps;
};

void StepPiece(float* theta, float* m, float* v, const float* gradient, uint64_t n, const StepConstants& c) {
  for (uint64_t i = 0; i < n; ++i) {
    theta[i] *= c.decay;
    m[i] += 0.1f * (gradient[i] - m[i]);
    v[i] = v[i] * 0.999f + 0.001f * gradient[i] * gradient[i];
    theta[i] -= c.step_size * (m[i] / (std::sqrt(v[i]) / c.root_bias2 + c.eps));
  }
}

}  // namespace

Trainer::Trainer(const ModelShape& shape, const Parallel& parallel) : parallel_(parallel) {
  Add("model.embed_tokens.weight", {shape.vocabulary, shape.hidden}, 0, 0.04f);
  for (uint64_t i = 0; i < shape.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    Add(layer + "self_attn.q_proj.weight", {shape.hidden, shape.hidden}, 0, 0.03f);
    Add(layer + "self_attn.k_proj.weight", {shape.key_value, shape.hidden}, 0, 0.03f);
    Add(layer + "self_attn.v_proj.weight", {shape.key_value, shape.hidden}, 0, 0.02f);
    Add(layer + "self_attn.o_proj.weight", {shape.hidden, shape.hidden}, 0, 0.02f);
    Add(layer + "mlp.gate_proj.weight", {shape.inner, shape.hidden}, 0, 0.03f);
    Add(layer + "mlp.up_proj.weight", {shape.inner, shape.hidden}, 0, 0.02f);
    Add(layer + "mlp.down_proj.weight", {shape.hidden, shape.inner}, 0, 0.02f);
    Add(layer + "input_layernorm.weight", {shape.hidden}, 1, 0.1f);
    Add(layer + "post_attention_layernorm.weight", {shape.hidden}, 1, 0.1f);
  }
  Add("model.norm.weight", {shape.hidden}, 1, 0.1f);
}

void Trainer::Add(std::string name, Shape shape, float mean, float deviation) {
  const auto make = [&] { return AllocateTensor(Dtype::kF32, shape); };
  parameters_.push_back({std::move(name), make(), make(), make()});
  const Parameter& added = parameters_.back();
  const uint64_t seed = 1000 * parameters_.size();
  FillNormal(FloatsOf(added.theta), mean, deviation, seed, parallel_);
  FillMoments(FloatsOf(added.m), FloatsOf(added.v), kGradient, seed + 1, parallel_);
}

void Trainer::Step() {
  BeginStep();
  parallel_.For(parameters_.size(), [&](uint64_t p) { StepParameter(p); });
}

void Trainer::StepParameter(uint64_t p) {
  const auto step = static_cast<double>(hyper_.step);
  const StepConstants constants{
      .decay = static_cast<float>(1 - hyper_.lr * hyper_.weight_decay),
      .step_size = static_cast<float>(hyper_.lr / (1 - std::pow(hyper_.beta1, step))),
      .root_bias2 = static_cast<float>(std::sqrt(1 - std::pow(hyper_.beta2, step))),
      .eps = static_cast<float>(hyper_.eps),
  };
  const Parameter& parameter = parameters_[p];
  constexpr uint64_t kPiece = 4096;
  float gradient[kPiece];
  NearNormal random(hyper_.step << 32 | p);
  const auto theta = FloatsOf(parameter.theta);
  for (uint64_t at = 0; at < theta.size(); at += kPiece) {
    const uint64_t n = std::min(kPiece, theta.size() - at);
    for (uint64_t i = 0; i < n; ++i) gradient[i] = kGradient * random.Next();
    StepPiece(theta.data() + at, FloatsOf(parameter.m).data() + at, FloatsOf(parameter.v).data() + at,
              gradient, n, constants);
  }
}

std::vector<pubsub::PublishedTensor> Trainer::PublishedTensors() const {
  std::vector<pubsub::PublishedTensor> tensors;
  for (const Parameter& parameter : parameters_) {
    tensors.push_back({parameter.name,
                       {},
                       parameter.theta,
                       Dtype::kBf16,
                       detect::Method::kInversion,
                       "AdamW, FP32",
                       hyper_.step});
  }
  tensors[0].aliases = {"lm_head.weight"};
  return tensors;
}

std::vector<detect::TensorStep> Trainer::LastStep() const {
  std::vector<detect::TensorStep> steps;
  for (uint32_t p = 0; p < parameters_.size(); ++p) {
    steps.push_back({p, {hyper_.step, detect::AdamStep{hyper_, parameters_[p].m, parameters_[p].v}, ""}});
  }
  return steps;
}

uint64_t Trainer::elements() const {
  uint64_t count = 0;
  for (const Parameter& parameter : parameters_) count += *ElementCount(parameter.theta.shape);
  return count;
}

}  // namespace deltawire::bench
