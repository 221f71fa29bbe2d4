#include "python/publisher.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pubsub/coding_name.h"
#include "pubsub/publisher.h"
#include "python/errors.h"
#include "python/log.h"
#include "python/owner_process.h"
#include "python/tensor.h"
#include "python/watching.h"
#include "store/open.h"

namespace deltawire::python {

namespace nb = nanobind;

namespace {

using ContinuityTuple = std::tuple<std::string, uint64_t, std::string>;  // run, number, digest

// Owns what the publisher's threads use.
struct PublisherHandle {
  OwnerProcess owner;
  PythonLog log;
  std::unique_ptr<pubsub::Publisher> publisher;

  PublisherHandle() = default;
  PublisherHandle(const PublisherHandle&) = delete;
  PublisherHandle& operator=(const PublisherHandle&) = delete;
  ~PublisherHandle() { Close(); }
  void Close() {
    if (!owner.IsThisProcess()) return OwnerProcess::Leave(publisher);
    // Waits for an upload, which may want to log.
    nb::gil_scoped_release released;
    publisher.reset();
  }
};

Digest DigestFromHex(const std::string& text) {
  const auto digest = Digest::FromHex(text);
  if (!digest) {
    throw CoreError(Error(Code::kInvalidArgument,
                          fmt::format("digest '{}' in the saved state is not 32 hexadecimal digits", text)));
  }
  return *digest;
}

std::unique_ptr<PublisherHandle> OpenPublisher(
    const std::string& url, const std::vector<TensorTuple>& tensors, const std::string& run, bool resume,
    const std::optional<ContinuityTuple>& continuity, bool single_writer, const std::string& cast_rule,
    const std::vector<std::pair<std::string, std::string>>& casts, const std::vector<std::string>& codings,
    const std::optional<std::string>& base, uint64_t anchor_every,
    const std::vector<std::pair<std::string, nb::bytes>>& anchor_files, int threads) {
  auto handle = std::make_unique<PublisherHandle>();
  pubsub::PublisherOptions options;
  options.run = run;
  options.resume = resume;
  if (continuity) {
    const auto& [of_run, number, digest] = *continuity;
    options.continuity = pubsub::Continuity{of_run, number, DigestFromHex(digest)};
  }
  options.single_writer = single_writer;
  options.cast_rule = cast_rule;
  options.codings.clear();
  for (const std::string& name : codings) options.codings.push_back(OrThrow(pubsub::CodingFromName(name)));
  options.anchor_every = anchor_every;
  for (const auto& [name, bytes] : anchor_files) {
    const auto* data = static_cast<const uint8_t*>(bytes.data());
    options.anchor_files.emplace_back(name, Bytes(data, data + bytes.size()));
  }
  options.backends = PythonBackends();
  options.parallel = Parallel(threads);
  options.log = &handle->log;

  std::vector<pubsub::PublishedTensor> published;
  for (const auto& [name, aliases, live, served, method, reason, step] : tensors) {
    published.push_back(
        {name, aliases, live.view, DtypeOrThrow(served), MethodOrThrow(method), reason, step});
  }
  const std::map<std::string, std::string> cast_of(casts.begin(), casts.end());
  for (pubsub::PublishedTensor& tensor : published) {
    if (const auto cast = cast_of.find(tensor.name); cast != cast_of.end()) tensor.cast = cast->second;
  }
  handle->publisher = OrThrow(WithoutGil([&]() -> Result<std::unique_ptr<pubsub::Publisher>> {
    DELTAWIRE_ASSIGN(options.store, OpenStore(url, true));
    options.base = base.value_or("");
    return pubsub::Publisher::Open(std::move(options), std::move(published));
  }));
  return handle;
}

ContinuityTuple State(PublisherHandle& self) {
  const auto state = OrThrow(WithoutGil([&] { return self.publisher->state(); }));
  return {state.run, state.number, state.digest.Hex()};
}

}  // namespace

void BindPublisher(nb::module_& module) {
  nb::class_<pubsub::AuditReport>(module, "AuditReport")
      .def_ro("number", &pubsub::AuditReport::number)
      .def_ro("tensors", &pubsub::AuditReport::tensors)
      .def_ro("elements", &pubsub::AuditReport::elements)
      .def_ro("compared", &pubsub::AuditReport::compared)
      .def_ro("different", &pubsub::AuditReport::different)
      .def_ro("blocks_wrong", &pubsub::AuditReport::blocks_wrong)
      .def_ro("first_wrong", &pubsub::AuditReport::first_wrong);
  nb::class_<PublisherHandle> publisher(module, "Publisher");
  BindWatching(publisher, [](PublisherHandle& self) -> pubsub::Publisher& { return *self.publisher; });
  publisher
      .def(nb::new_(&OpenPublisher), nb::arg("url"), nb::arg("tensors"), nb::kw_only(), nb::arg("run"),
           nb::arg("resume"), nb::arg("continuity").none(), nb::arg("single_writer"), nb::arg("cast_rule"),
           nb::arg("casts"), nb::arg("codings"), nb::arg("base").none(), nb::arg("anchor_every"),
           nb::arg("anchor_files"), nb::arg("threads"))
      .def_prop_ro("run", [](const PublisherHandle& self) { return self.publisher->run(); })
      .def_prop_ro("opened", [](const PublisherHandle& self) { return self.publisher->opened(); })
      .def(
          "publish",
          [](PublisherHandle& self, bool durable) {
            return OrThrow(WithoutGil([&] { return self.publisher->Publish(durable); }));
          },
          nb::arg("durable"))
      .def("flush",
           [](PublisherHandle& self) { OrThrow(WithoutGil([&] { return self.publisher->Flush(); })); })
      .def("write_anchor",
           [](PublisherHandle& self) { OrThrow(WithoutGil([&] { return self.publisher->WriteAnchor(); })); })
      .def("state", &State)
      .def("close", &PublisherHandle::Close, "Nothing else may be called afterwards.")
      .def("audit", [](PublisherHandle& self) {
        return OrThrow(WithoutGil([&] { return self.publisher->Audit(); }));
      });
}

}  // namespace deltawire::python
