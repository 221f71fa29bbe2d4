// What a training loop reports, bound once for everything that watches tensors: the publisher and the
// detector.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "detect/model_watch.h"
#include "python/errors.h"
#include "python/tensor.h"

namespace deltawire::python {

// name, aliases, live, served dtype, method, reason, counter of the optimizer
using TensorTuple = std::tuple<std::string, std::vector<std::string>, TensorRef, std::string, std::string,
                               std::string, uint64_t>;
// index, counter, rule, why the step can't be undone (with rule None). Rules, with the state after the step:
// ("adam", (lr, weight decay, beta1, beta2, eps, bias correction), m, v),
// ("sgd", (lr, weight decay, factor of y), x, y or None).
using StepTuple = std::tuple<uint32_t, uint64_t, nanobind::object, std::string>;

detect::Method MethodOrThrow(const std::string& name);
// With the GIL.
std::vector<detect::TensorStep> StepsFrom(const std::vector<StepTuple>& observed);

// core(Handle&): what has ModelWatch's functions.
template <class Handle, class Core>
void BindWatching(nanobind::class_<Handle>& watching, Core core) {
  namespace nb = nanobind;
  using Indices = std::vector<uint32_t>;
  watching
      .def(
          "before_step",
          [core](Handle& self, const Indices& tensors) {
            OrThrow(WithoutGil([&] { return core(self).BeforeStep(tensors); }));
          },
          nb::arg("tensors"))
      .def(
          "after_step",
          [core](Handle& self, const std::vector<StepTuple>& steps) {
            auto records = StepsFrom(steps);
            OrThrow(WithoutGil([&] { return core(self).AfterStep(std::move(records)); }));
          },
          nb::arg("steps"))
      .def(
          "check_steps",
          [core](Handle& self, const std::vector<uint64_t>& counters) { core(self).CheckSteps(counters); },
          nb::arg("counters"))
      .def(
          "begin_capture",
          [core](Handle& self, const Indices& tensors) {
            OrThrow(WithoutGil([&] { return core(self).BeginCapture(tensors); }));
          },
          nb::arg("tensors"))
      .def(
          "end_capture",
          [core](Handle& self, const Indices& tensors) {
            OrThrow(WithoutGil([&] { return core(self).EndCapture(tensors); }));
          },
          nb::arg("tensors"))
      .def(
          "copy_back",
          [core](Handle& self, uint32_t tensor, const TensorRef& master) {
            OrThrow(WithoutGil([&] { return core(self).CopyBack(tensor, master.view); }));
          },
          nb::arg("tensor"), nb::arg("master"))
      .def(
          "rebind",
          [core](Handle& self, uint32_t tensor, const TensorRef& live) {
            OrThrow(core(self).Rebind(tensor, live.view));
          },
          nb::arg("tensor"), nb::arg("live"))
      .def(
          "demotions",
          [core](Handle& self) {
            std::vector<std::tuple<uint32_t, std::string, std::string>> out;
            for (auto& demotion : core(self).Demotions()) {
              out.emplace_back(demotion.tensor, detect::MethodName(demotion.method),
                               std::move(demotion.reason));
            }
            return out;
          },
          "(index, detector, reason) of the tensors whose first detector turned out to be wrong about them.")
      .def_prop_ro("memory_bytes", [core](Handle& self) { return core(self).memory_bytes(); });
}

}  // namespace deltawire::python
