// A model of SmolLM2-135M's shape, trained on noise by AdamW's arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "kernels/adamw_band.h"
#include "pubsub/publisher.h"
#include "tensor/tensor_view.h"

namespace deltawire::bench {

struct ModelShape {
  uint64_t vocabulary, hidden, key_value, inner, layers;
};
inline constexpr ModelShape kSmolLm135M{49152, 576, 192, 1536, 30};  // 134,515,008 elements, head tied
inline constexpr ModelShape kTiny{2048, 192, 64, 512, 2};

class Trainer {
 public:
  Trainer(const ModelShape& shape, const Parallel& parallel);

  // One optimizer step, in the order of torch's single-tensor loop. Gradients are noise; the moments begin as
  // they are after long training, so that the first step is already like all others.
  void Step();
  // The same in two: BeginStep once, then StepParameter for each, in any order and from any thread.
  void BeginStep() { ++hyper_.step; }
  void StepParameter(uint64_t parameter);

  std::vector<pubsub::PublishedTensor> PublishedTensors() const;
  // What Publisher::AfterStep is told about the last step.
  std::vector<detect::TensorStep> LastStep() const;
  uint64_t elements() const;

  struct Parameter {
    std::string name;
    TensorView theta, m, v;
  };
  const std::vector<Parameter>& parameters() const { return parameters_; }

 private:
  void Add(std::string name, Shape shape, float mean, float deviation);

  Parallel parallel_;
  kernels::AdamwHyper hyper_{.lr = 1e-6, .weight_decay = 0.1, .step = 1000};
  std::vector<Parameter> parameters_;
};

}  // namespace deltawire::bench
