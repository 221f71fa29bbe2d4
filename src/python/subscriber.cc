#include "pubsub/subscriber.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "pubsub/folder_target.h"
#include "python/errors.h"
#include "python/log.h"
#include "python/owner_process.h"
#include "python/subscriber.h"
#include "python/tensor.h"
#include "store/open.h"

namespace deltawire::python {

namespace nb = nanobind;

namespace {

// In the order in which they may go: the subscriber last in, first out.
struct SubscriberHandle {
  OwnerProcess owner;
  PythonLog log;
  std::unique_ptr<pubsub::FolderTarget> folder;
  std::unique_ptr<pubsub::Subscriber> subscriber;

  SubscriberHandle() = default;
  SubscriberHandle(const SubscriberHandle&) = delete;
  SubscriberHandle& operator=(const SubscriberHandle&) = delete;
  ~SubscriberHandle() { Close(); }
  void Close() {
    if (!owner.IsThisProcess()) {
      OwnerProcess::Leave(subscriber);
      OwnerProcess::Leave(folder);
      return;
    }
    nb::gil_scoped_release released;
    subscriber.reset();
    folder.reset();
  }
};

std::unique_ptr<SubscriberHandle> OpenSubscriber(
    const std::string& url, const std::vector<std::pair<std::string, TensorRef>>& targets,
    const std::optional<std::string>& folder, const std::optional<std::string>& run,
    const std::optional<std::vector<std::string>>& codings, int threads) {
  auto handle = std::make_unique<SubscriberHandle>();
  pubsub::SubscriberOptions options;
  options.run = run;
  if (codings) options.codings = *codings;
  options.backends = PythonBackends();
  options.parallel = Parallel(threads);
  options.log = &handle->log;
  std::vector<pubsub::TargetTensor> tensors;
  for (const auto& [name, tensor] : targets) tensors.push_back({name, tensor.view});
  OrThrow(WithoutGil([&]() -> Status {
    // An engine may start before its trainer, and makes nothing.
    DELTAWIRE_ASSIGN(options.store, OpenStoreToRead(url));
    if (folder) {
      DELTAWIRE_ASSIGN(handle->folder, pubsub::FolderTarget::Open(*folder));
      options.observer = handle->folder.get();
      tensors = handle->folder->Targets();
    }
    DELTAWIRE_ASSIGN(handle->subscriber, pubsub::Subscriber::Open(std::move(options), std::move(tensors)));
    return {};
  }));
  return handle;
}

}  // namespace

void BindSubscriber(nb::module_& module) {
  nb::class_<std::stop_source>(module, "Cancel", "Ends a wait in another thread.")
      .def(nb::init<>())
      .def("cancel", [](std::stop_source& self) { self.request_stop(); });
  nb::class_<SubscriberHandle>(module, "Subscriber")
      .def(nb::new_(&OpenSubscriber), nb::arg("url"), nb::arg("targets"), nb::kw_only(),
           nb::arg("folder").none(), nb::arg("run").none(), nb::arg("codings").none(), nb::arg("threads"))
      .def_prop_ro("version", [](const SubscriberHandle& self) { return self.subscriber->version(); })
      .def_prop_ro("run", [](const SubscriberHandle& self) { return self.subscriber->run(); })
      .def_prop_ro("unmanaged", [](const SubscriberHandle& self) { return self.subscriber->unmanaged(); })
      .def_prop_ro("digest",
                   [](const SubscriberHandle& self) { return OrThrow(self.subscriber->digest()).Hex(); })
      .def_prop_ro("has_staged", [](const SubscriberHandle& self) { return self.subscriber->has_staged(); })
      .def_prop_ro("pinned", [](const SubscriberHandle& self) { return self.subscriber->pinned(); })
      .def_prop_ro("refusals", [](const SubscriberHandle& self) { return self.subscriber->refusals(); })
      .def_prop_ro("memory_bytes",
                   [](const SubscriberHandle& self) { return self.subscriber->memory_bytes(); })
      .def_prop_ro(
          "recovered",
          [](const SubscriberHandle& self) { return self.folder != nullptr && self.folder->recovered(); })
      .def(
          "stage",
          [](SubscriberHandle& self, std::optional<uint64_t> number) {
            return OrThrow(WithoutGil([&] { return self.subscriber->Stage(number); }));
          },
          nb::arg("number").none())
      .def("commit",
           [](SubscriberHandle& self) {
             return OrThrow(WithoutGil([&] { return self.subscriber->Commit(); }));
           })
      .def(
          "update",
          [](SubscriberHandle& self, std::optional<uint64_t> number) {
            return OrThrow(WithoutGil([&] { return self.subscriber->Update(number); }));
          },
          nb::arg("number").none())
      .def("rollback",
           [](SubscriberHandle& self) {
             return OrThrow(WithoutGil([&] { return self.subscriber->Rollback(); }));
           })
      .def("close", &SubscriberHandle::Close, "Nothing else may be called afterwards.")
      .def("unpin", [](SubscriberHandle& self) { self.subscriber->Unpin(); })
      .def("verify",
           [](SubscriberHandle& self) { OrThrow(WithoutGil([&] { return self.subscriber->Verify(); })); })
      .def(
          "newer_version",
          [](SubscriberHandle& self, std::optional<uint64_t> than, int64_t timeout_ms, int64_t poll_ms,
             const std::stop_source& cancel) {
            const sync::WaitOptions wait{.timeout_ms = timeout_ms, .poll_ms = poll_ms};
            return OrThrow(
                WithoutGil([&] { return self.subscriber->NewerVersion(than, wait, cancel.get_token()); }));
          },
          nb::arg("than").none(), nb::arg("timeout_ms"), nb::arg("poll_ms"), nb::arg("cancel"),
          "The only function that may run beside others.");
}

}  // namespace deltawire::python
