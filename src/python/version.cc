#include "pubsub/version.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "python/version.h"

namespace deltawire::python {

namespace nb = nanobind;
using pubsub::Version;

void BindVersion(nb::module_& module) {
  nb::class_<Version>(module, "Version")
      .def_ro("number", &Version::number)
      .def_ro("base", &Version::base)
      .def_prop_ro("digest", [](const Version& self) { return self.digest.Hex(); })
      .def_ro("steps", &Version::steps)
      .def_ro("changed", &Version::changed)
      .def_ro("uncertain", &Version::uncertain)
      .def_ro("dense", &Version::dense)
      .def_ro("sent", &Version::sent)
      .def_ro("total", &Version::total)
      .def_ro("bytes", &Version::bytes)
      .def_ro("seconds", &Version::seconds)
      .def_prop_ro(
          "detectors",
          [](const Version& self) {
            std::vector<std::tuple<std::string, std::string, uint64_t, uint64_t>> uses;
            for (const auto& use : self.detectors) {
              uses.emplace_back(use.detector, use.reason, use.tensors, use.elements);
            }
            return uses;
          },
          "(detector, reason, tensors, elements)")
      .def_ro("stages", &Version::stages)
      .def_ro("notes", &Version::notes);
}

}  // namespace deltawire::python
