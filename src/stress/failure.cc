#include "stress/failure.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

namespace deltawire::stress {
namespace {

std::string Bits(float x) { return fmt::format("0x{:08x} ({:g})", std::bit_cast<uint32_t>(x), x); }
std::string Number(double x) { return fmt::format("{:a} ({:g})", x, x); }

}  // namespace

Failure DescribeFailure(const BatchPlan& plan, const Scene& scene, uint64_t step, uint32_t element,
                        std::string what, uint16_t before, uint16_t after, std::string verdict) {
  Failure failure;
  failure.batch = plan.number;
  failure.what = std::move(what);
  const auto add = [&](std::string name, std::string value) {
    failure.facts.emplace_back(std::move(name), std::move(value));
  };
  add("seed", fmt::format("{}", plan.seed));
  add("batch", fmt::format("{}", plan.number));
  add("step", fmt::format("{}", step));
  add("element", fmt::format("{}", element));
  for (auto& [dimension, value] : LabelsOf(plan)) {
    if (dimension != "class" && dimension != "generator/moments")
      add(std::string(dimension), std::move(value));
  }
  add("float_scalars", plan.float_scalars ? "yes" : "no");
  const kernels::AdamwHyper& h = scene.hyper().adamw;
  add("lr", Number(h.lr));
  add("weight_decay", Number(h.weight_decay));
  if (IsSgd(plan.order)) {
    add("momentum", Number(scene.hyper().momentum));
  } else {
    add("beta1", Number(h.beta1));
    add("beta2", Number(h.beta2));
    add("eps", Number(h.eps));
    add("counter", fmt::format("{}", h.step));
    add("kernel.bc1", Bits(scene.scalars().bc1));
    add("kernel.bc2", Bits(scene.scalars().bc2));
    add("kernel.step_size", Bits(scene.scalars().step_size));
  }
  add("kernel.factor", Bits(scene.scalars().factor));
  add("theta.before", Bits(scene.before()[element]));
  add("theta.after", Bits(scene.theta()[element]));
  add("first.register", Bits(scene.first_register()[element]));
  add("second.register", Bits(scene.second_register()[element]));
  add("first.stored", Bits(scene.first_float()[element]));
  add("second.stored", Bits(scene.second_float()[element]));
  add("served.before", fmt::format("0x{:04x}", before));
  add("served.after", fmt::format("0x{:04x}", after));
  add("verdict", std::move(verdict));
  return failure;
}

}  // namespace deltawire::stress
