#include "deltawire/publisher.h"

#include <algorithm>
#include <limits>

#include "api/convert.h"
#include "pubsub/coding_name.h"
#include "pubsub/publisher.h"
#include "store/open.h"

namespace deltawire {

struct Publisher::State {
  std::vector<SourceTensor> tensors;
  std::unique_ptr<pubsub::Publisher> publisher;
  VersionInfo opened;
};

namespace {

// A pointer to const becomes writable memory here; the publisher only reads it.
Result<TensorView> ViewOf(const std::string& name, const void* data, const std::string& dtype,
                          const std::vector<uint64_t>& shape, const std::vector<int64_t>& strides) {
  return api::HostView(name, const_cast<void*>(data), dtype, shape, strides);
}

Result<pubsub::PublishedTensor> ToPublished(const SourceTensor& tensor) {
  pubsub::PublishedTensor out;
  out.name = tensor.name;
  out.aliases = tensor.aliases;
  DELTAWIRE_ASSIGN(out.live, ViewOf(tensor.name, tensor.data, tensor.dtype, tensor.shape, tensor.strides));
  const auto served = DtypeFromName(tensor.served_dtype.empty() ? tensor.dtype : tensor.served_dtype);
  if (!served) {
    return Fail(Code::kInvalidArgument, "tensor {}: unknown served dtype \"{}\"", tensor.name,
                tensor.served_dtype);
  }
  out.served = *served;
  switch (tensor.detector) {
    case Detector::kInversion: out.method = detect::Method::kInversion; break;
    case Detector::kCapture: out.method = detect::Method::kCapture; break;
    case Detector::kCopyBack: out.method = detect::Method::kCopyBack; break;
    case Detector::kSnapshot: out.method = detect::Method::kSnapshot; break;
    case Detector::kFence: out.method = detect::Method::kFence; break;
  }
  out.reason = "chosen by the caller";
  out.start_step = tensor.step;
  return out;
}

// Indices beyond 32 bits are refused by whoever takes them, like all others that no tensor has.
std::vector<uint32_t> Indices(const std::vector<size_t>& tensors) {
  std::vector<uint32_t> out;
  for (const size_t tensor : tensors) {
    out.push_back(static_cast<uint32_t>(std::min<size_t>(tensor, std::numeric_limits<uint32_t>::max())));
  }
  return out;
}

// A row-major array of a tensor's shape: optimizer state, a master.
Result<TensorView> StateView(const std::vector<SourceTensor>& tensors, size_t tensor, const void* data,
                             const std::string& dtype) {
  if (tensor >= tensors.size()) {
    return Fail(Code::kInvalidArgument, "step of tensor {}: only {} were given", tensor, tensors.size());
  }
  return ViewOf(tensors[tensor].name, data, dtype, tensors[tensor].shape, {});
}

Result<detect::AdamStep> ToAdam(const std::vector<SourceTensor>& tensors, const AdamStep& step) {
  detect::AdamStep out;
  out.hyper = {.lr = step.lr,
               .weight_decay = step.weight_decay,
               .beta1 = step.beta1,
               .beta2 = step.beta2,
               .eps = step.eps,
               .step = step.step,
               .bias_correction = step.bias_correction};
  DELTAWIRE_ASSIGN(out.m, StateView(tensors, step.tensor, step.m, step.m_dtype));
  DELTAWIRE_ASSIGN(out.v, StateView(tensors, step.tensor, step.v, step.v_dtype));
  return out;
}

Result<detect::SgdStep> ToSgd(const std::vector<SourceTensor>& tensors, const SgdStep& step) {
  detect::SgdStep out;
  out.hyper = {.lr = step.lr, .weight_decay = step.weight_decay, .mu = step.mu};
  DELTAWIRE_ASSIGN(out.x, StateView(tensors, step.tensor, step.x, "F32"));
  if (step.y != nullptr) {
    DELTAWIRE_ASSIGN(auto y, StateView(tensors, step.tensor, step.y, "F32"));
    out.y = std::move(y);
  }
  return out;
}

Result<pubsub::PublisherOptions> ToOptions(const PublishOptions& options) {
  pubsub::PublisherOptions out;
  DELTAWIRE_ASSIGN(out.store, OpenStore(options.url, true));
  out.run = options.run;
  out.resume = options.resume;
  out.cast_rule = "as the caller declared";
  out.anchor_every = options.anchor_every;
  out.parallel = Parallel(options.threads);
  out.codings.clear();
  for (const std::string& name : options.codings) {
    DELTAWIRE_ASSIGN(const codec::Coding coding, pubsub::CodingFromName(name));
    out.codings.push_back(coding);
  }
  return out;
}

}  // namespace

Publisher::Publisher(std::unique_ptr<State> state) : state_(std::move(state)) {}
Publisher::~Publisher() = default;
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&&) noexcept = default;

Expected<Publisher> Publisher::Open(const PublishOptions& options, const std::vector<SourceTensor>& tensors) {
  auto state = std::make_unique<State>();
  state->tensors = tensors;
  const auto open = [&]() -> Status {
    DELTAWIRE_ASSIGN(pubsub::PublisherOptions internal, ToOptions(options));
    internal.base = options.base;
    std::vector<pubsub::PublishedTensor> published;
    for (const SourceTensor& tensor : tensors) {
      DELTAWIRE_ASSIGN(auto entry, ToPublished(tensor));
      published.push_back(std::move(entry));
    }
    DELTAWIRE_ASSIGN(state->publisher, pubsub::Publisher::Open(std::move(internal), std::move(published)));
    state->opened = api::ToVersionInfo(state->publisher->opened());
    return {};
  };
  if (const Status opened = open(); !opened) return api::ToErrorInfo(opened.error());
  return Publisher(std::move(state));
}

const VersionInfo& Publisher::opened() const { return state_->opened; }

Expected<Done> Publisher::BeforeStep(const std::vector<size_t>& tensors) {
  return api::ToExpected(state_->publisher->BeforeStep(Indices(tensors)));
}

Expected<Done> Publisher::AfterStep(const std::vector<AdamStep>& adam, const std::vector<SgdStep>& sgd) {
  const auto observe = [&]() -> Status {
    std::vector<detect::TensorStep> steps;
    for (const AdamStep& step : adam) {
      DELTAWIRE_ASSIGN(auto state, ToAdam(state_->tensors, step));
      steps.push_back({static_cast<uint32_t>(step.tensor), {step.step, std::move(state), ""}});
    }
    for (const SgdStep& step : sgd) {
      DELTAWIRE_ASSIGN(auto state, ToSgd(state_->tensors, step));
      steps.push_back({static_cast<uint32_t>(step.tensor), {step.step, std::move(state), ""}});
    }
    return state_->publisher->AfterStep(std::move(steps));
  };
  return api::ToExpected(observe());
}

Expected<Done> Publisher::BeginCapture(const std::vector<size_t>& tensors) {
  return api::ToExpected(state_->publisher->BeginCapture(Indices(tensors)));
}

Expected<Done> Publisher::EndCapture(const std::vector<size_t>& tensors) {
  return api::ToExpected(state_->publisher->EndCapture(Indices(tensors)));
}

Expected<Done> Publisher::CopyBack(size_t tensor, const void* master, const std::string& dtype) {
  const auto copy_back = [&]() -> Status {
    DELTAWIRE_ASSIGN(auto view, StateView(state_->tensors, tensor, master, dtype));
    return state_->publisher->CopyBack(static_cast<uint32_t>(tensor), view);
  };
  return api::ToExpected(copy_back());
}

Expected<VersionInfo> Publisher::Publish() { return api::ToExpected(state_->publisher->Publish()); }
Expected<Done> Publisher::WriteAnchor() { return api::ToExpected(state_->publisher->WriteAnchor()); }

}  // namespace deltawire
