#include "deltawire/publisher.h"

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
    case Detector::kSnapshot: out.method = detect::Method::kSnapshot; break;
    case Detector::kFence: out.method = detect::Method::kFence; break;
  }
  out.reason = "chosen by the caller";
  out.start_step = tensor.step;
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

Expected<Done> Publisher::BeforeStep() { return api::ToExpected(state_->publisher->BeforeStep()); }

Expected<Done> Publisher::AfterStep(const std::vector<AdamwStep>& steps) {
  std::vector<pubsub::TensorStep> internal;
  for (const AdamwStep& step : steps) {
    if (step.tensor >= state_->tensors.size()) {
      return ErrorInfo{
          std::string(CodeName(Code::kInvalidArgument)),
          fmt::format("step of tensor {}: only {} were given", step.tensor, state_->tensors.size())};
    }
    const SourceTensor& tensor = state_->tensors[step.tensor];
    const auto m = ViewOf(tensor.name, step.m, "F32", tensor.shape, {});
    const auto v = ViewOf(tensor.name, step.v, "F32", tensor.shape, {});
    if (!m) return api::ToErrorInfo(m.error());
    if (!v) return api::ToErrorInfo(v.error());
    internal.push_back({static_cast<uint32_t>(step.tensor),
                        {.lr = step.lr,
                         .weight_decay = step.weight_decay,
                         .beta1 = step.beta1,
                         .beta2 = step.beta2,
                         .eps = step.eps,
                         .step = step.step,
                         .bias_correction = true},
                        *m,
                        *v,
                        ""});
  }
  return api::ToExpected(state_->publisher->AfterStep(internal));
}

Expected<VersionInfo> Publisher::Publish() { return api::ToExpected(state_->publisher->Publish()); }
Expected<Done> Publisher::WriteAnchor() { return api::ToExpected(state_->publisher->WriteAnchor()); }

}  // namespace deltawire
