// What one numbered batch of the stress program runs. A batch depends on its seed and number alone, so
// results don't depend on threads, and a run that was killed goes on at the next number.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deltawire::stress {

// Where weights and moments come from (docs/benchmarks.md, "Stress of detection").
enum class Generator : uint8_t {
  kNatural,      // training runs: theta ~ N(0, 0.02), gradients with a scale of their own for each element
  kSmall,        // the same with theta ~ N(0, 1e-4), zeros of both signs and rows that get no gradient
  kAdversarial,  // theta or theta' within a few units of a BF16 midpoint, one step
  kWild,         // the same with zeros, subnormals, overflow and random bit patterns among theta, m and v
};
inline constexpr int kGenerators = 4;

// How the step computes. The numbers of an order's operations are in orders-inl.h.
enum class Order : uint8_t {
  kTorchSingle,
  kTorchForeach,
  kTorchCapturable,
  kTorchFusedCuda,
  kTransformerEngine,
  kApexFast,
  kDeepSpeedCpu,
  kBitsAndBytes,
  kTriton,
  kSgd,
  kSgdMomentum,
  kSgdNesterov,
};
inline constexpr int kOrders = 12;
constexpr bool IsSgd(Order order) { return order >= Order::kSgd; }

enum class Moments : uint8_t { kF32, kBf16, kBf16First, kBf16Second };
inline constexpr int kMoments = 4;
constexpr bool FirstIsBf16(Moments moments) {
  return moments == Moments::kBf16 || moments == Moments::kBf16First;
}
constexpr bool SecondIsBf16(Moments moments) {
  return moments == Moments::kBf16 || moments == Moments::kBf16Second;
}

// Where subnormals are flushed to zero, read as well as written.
enum class Flush : uint8_t { kNowhere, kStep, kStepAndDetector };
inline constexpr int kFlushes = 3;

// How the step's kernel computes beta^t.
enum class Power : uint8_t {
  kDouble,
  kFloat,    // a powf that is up to 4 units off
  kRunning,  // float32 product, one factor a step
  kFast,     // exp2(t * log2(beta)) in float32, each as far off as a GPU's fast-math functions may be
  kNone,     // no bias correction
};
inline constexpr int kPowers = 5;

enum class Mode : uint8_t { kDecoupled, kL2, kAmsgrad, kMaximize };
inline constexpr int kModes = 4;

// What the served BF16 is: rounded to nearest even, or half away from zero as a split master's upper half is.
enum class Rounding : uint8_t { kNearestEven, kHalfUp };

struct BatchPlan {
  uint64_t seed = 0;
  uint64_t number = 0;
  Generator generator = Generator::kNatural;
  Order order = Order::kTorchSingle;
  bool contracted = false;  // products and sums fused wherever the compiler can
  Flush flush = Flush::kNowhere;
  Moments moments = Moments::kF32;
  Power power = Power::kDouble;
  Mode mode = Mode::kDecoupled;
  Rounding rounding = Rounding::kNearestEven;
  bool float_scalars = false;  // the kernel holds lr, betas and decay as float32 and computes with them
  bool reference = false;      // kernels::RefTable() instead of CpuTable()
  // 0: the kernel's verdict on each step by itself. Otherwise detect::TensorWatch observes every step and is
  // collected after this many.
  uint32_t interval = 0;
};

// Bumped when a batch number means something else than before: tallies of different plans don't add up.
inline constexpr uint64_t kPlanVersion = 2;

inline constexpr uint32_t kBatchElements = 1u << 16;  // element-steps of a batch

BatchPlan MakePlan(uint64_t seed, uint64_t number);

// (dimension, value) pairs under which a batch is counted: ("order", "torch_single"), ..., and
// ("class", "natural/torch_single/f32").
std::vector<std::pair<std::string_view, std::string>> LabelsOf(const BatchPlan& plan);

}  // namespace deltawire::stress
