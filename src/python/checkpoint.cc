#include "pubsub/checkpoint.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "pubsub/coding_name.h"
#include "pubsub/patch_file.h"
#include "python/checkpoint.h"
#include "python/errors.h"

namespace deltawire::python {

namespace nb = nanobind;

namespace {

std::vector<std::tuple<std::string, std::string, Shape>> CheckpointTensors(const std::string& path) {
  const auto checkpoint = OrThrow(WithoutGil([&] { return pubsub::Checkpoint::Open(path); }));
  std::vector<std::tuple<std::string, std::string, Shape>> tensors;
  for (const auto& tensor : checkpoint.tensors()) {
    tensors.emplace_back(tensor.name, DtypeName(tensor.view.dtype), tensor.view.shape);
  }
  return tensors;
}

pubsub::Version Diff(const std::string& old_path, const std::string& new_path, const std::string& out,
                     const std::string& coding, int threads) {
  pubsub::PatchOptions options;
  options.coding = OrThrow(pubsub::CodingFromName(coding));
  options.parallel = Parallel(threads);
  return OrThrow(WithoutGil([&] { return pubsub::DiffCheckpoints(old_path, new_path, out, options); }));
}

pubsub::Version Apply(const std::string& base, const std::string& patch, const std::string& out,
                      int threads) {
  pubsub::PatchOptions options;
  options.parallel = Parallel(threads);
  return OrThrow(WithoutGil([&] { return pubsub::ApplyPatch(base, patch, out, options); }));
}

}  // namespace

void BindCheckpoint(nb::module_& module) {
  module.def("checkpoint_tensors", &CheckpointTensors, nb::arg("path"),
             "(name, dtype, shape), sorted by name.");
  module.def("diff", &Diff, nb::arg("old"), nb::arg("new"), nb::arg("out"), nb::arg("coding"),
             nb::arg("threads"));
  module.def("apply", &Apply, nb::arg("base"), nb::arg("patch"), nb::arg("out"), nb::arg("threads"));
}

}  // namespace deltawire::python
