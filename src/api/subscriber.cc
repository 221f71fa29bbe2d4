#include "deltawire/subscriber.h"

#include "api/convert.h"
#include "pubsub/folder_target.h"
#include "pubsub/subscriber.h"
#include "store/open.h"

namespace deltawire {

struct Subscriber::State {
  std::unique_ptr<pubsub::FolderTarget> folder;  // outlives the subscriber, which writes through it
  std::unique_ptr<pubsub::Subscriber> subscriber;
};

Subscriber::Subscriber(std::unique_ptr<State> state) : state_(std::move(state)) {}
Subscriber::~Subscriber() = default;
Subscriber::Subscriber(Subscriber&&) noexcept = default;
Subscriber& Subscriber::operator=(Subscriber&&) noexcept = default;

Expected<Subscriber> Subscriber::Open(const std::string& url, const std::vector<EngineTensor>& tensors,
                                      int threads) {
  auto state = std::make_unique<State>();
  const auto open = [&]() -> Status {
    pubsub::SubscriberOptions options;
    DELTAWIRE_ASSIGN(options.store, OpenStoreToRead(url));
    options.parallel = Parallel(threads);
    std::vector<pubsub::TargetTensor> targets;
    for (const EngineTensor& tensor : tensors) {
      DELTAWIRE_ASSIGN(auto view,
                       api::HostView(tensor.name, tensor.data, tensor.dtype, tensor.shape, tensor.strides));
      targets.push_back({tensor.name, std::move(view)});
    }
    DELTAWIRE_ASSIGN(state->subscriber, pubsub::Subscriber::Open(std::move(options), std::move(targets)));
    return {};
  };
  if (const Status opened = open(); !opened) return api::ToErrorInfo(opened.error());
  return Subscriber(std::move(state));
}

Expected<Subscriber> Subscriber::OpenCheckpoint(const std::string& url, const std::string& path,
                                                int threads) {
  auto state = std::make_unique<State>();
  const auto open = [&]() -> Status {
    DELTAWIRE_ASSIGN(state->folder, pubsub::FolderTarget::Open(path));
    pubsub::SubscriberOptions options;
    DELTAWIRE_ASSIGN(options.store, OpenStoreToRead(url));
    options.parallel = Parallel(threads);
    options.observer = state->folder.get();
    DELTAWIRE_ASSIGN(state->subscriber,
                     pubsub::Subscriber::Open(std::move(options), state->folder->Targets()));
    return {};
  };
  if (const Status opened = open(); !opened) return api::ToErrorInfo(opened.error());
  return Subscriber(std::move(state));
}

std::optional<VersionInfo> Subscriber::version() const {
  const auto& version = state_->subscriber->version();
  if (!version) return std::nullopt;
  return api::ToVersionInfo(*version);
}

Expected<VersionInfo> Subscriber::Stage(std::optional<uint64_t> number) {
  return api::ToExpected(state_->subscriber->Stage(number));
}
Expected<VersionInfo> Subscriber::Commit() { return api::ToExpected(state_->subscriber->Commit()); }
Expected<VersionInfo> Subscriber::Update(std::optional<uint64_t> number) {
  return api::ToExpected(state_->subscriber->Update(number));
}
Expected<VersionInfo> Subscriber::Rollback() { return api::ToExpected(state_->subscriber->Rollback()); }
Expected<Done> Subscriber::Verify() { return api::ToExpected(state_->subscriber->Verify()); }

}  // namespace deltawire
