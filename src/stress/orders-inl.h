// The operation orders, compiled twice: orders_plain.cc without contraction, orders_contracted.cc with it.
// Builtins and internal linkage only: an inline function of the standard library that was compiled here, for
// AVX2, could end up in the rest of the program.

#include <cstdint>

#include "stress/step_orders.h"

namespace deltawire::stress {
namespace {

inline float Root(float x) { return __builtin_sqrtf(x); }
inline uint32_t BitsOf(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// A result that a fast-math kernel has up to `units` (1 or 2) beside the right one, for which side and how
// far stand somewhere in its own bits. Zeros, subnormals and what is near infinity stay.
inline float Off(float x, int units) {
  const uint32_t bits = BitsOf(x);
  const uint32_t choice = (bits * 0x9E3779B9u) >> 29;  // 0 ... 7
  const auto step = static_cast<int32_t>(choice % (2 * static_cast<uint32_t>(units) + 1)) - units;
  const uint32_t exponent = bits & 0x7F800000;
  const bool ordinary = exponent > 0x00800000 && exponent < 0x7F000000;
  return FloatOf(ordinary ? bits + static_cast<uint32_t>(step) : bits);
}
inline float FastQuotient(float a, float b) { return Off(a / b, 2); }
inline float FastReciprocal(float x) { return Off(1.0f / x, 1); }
inline float FastRoot(float x) { return Off(Root(x), 1); }

struct TorchSingle {
  static float Step(const StepScalars& s, float theta, float m, float v) {
    const float denominator = Root(v) / s.root_bc2 + s.eps;
    return theta * s.factor + (-s.step_size * m) / denominator;
  }
};

struct TorchForeach {
  static float Step(const StepScalars& s, float theta, float m, float v) {
    const float denominator = Root(v) / s.root_bc2 + s.eps;
    return theta * s.factor + -s.step_size * (m / denominator);
  }
};

// The step size stands in the denominator, so that a tensor can hold it.
struct TorchCapturable {
  static float Step(const StepScalars& s, float theta, float m, float v) {
    const float negative = -(s.lr / s.bc1);
    const float denominator = Root(v) / (s.root_bc2 * negative) + s.eps / negative;
    return theta * s.factor + m / denominator;
  }
};

struct TorchFusedCuda {
  static float Step(const StepScalars& s, float theta, float m, float v) {
    const auto wide = static_cast<double>(theta);
    const auto decayed = static_cast<float>(wide - s.lambda * wide);
    const float denominator = Root(v) / s.root_bc2 + s.eps;
    return decayed - s.step_size * m / denominator;
  }
};

// Decay inside the update.
struct TransformerEngine {
  static float Step(const StepScalars& s, float theta, float m, float v) {
    const float denominator = Root(v / s.bc2) + s.eps;
    const float update = (m / s.bc1) / denominator + s.decay * theta;
    return theta - s.lr * update;
  }
};

// The same with fast-math quotients and roots (DeepSpeed's GPU kernel, too).
struct ApexFast {
  static float Step(const StepScalars& s, float theta, float m, float v) {
    const float denominator = FastRoot(FastQuotient(v, s.bc2)) + s.eps;
    const float update = FastQuotient(FastQuotient(m, s.bc1), denominator) + s.decay * theta;
    return theta - s.lr * update;
  }
};

// Fused by hand, whatever the compiler is told.
struct DeepSpeedCpu {
  static float Step(const StepScalars& s, float theta, float m, float v) {
    const float inverse_root = 1.0f / s.root_bc2;
    const float minus_decay = -s.lr * s.decay;
    const float decayed = __builtin_fmaf(theta, minus_decay, theta);
    const float denominator = __builtin_fmaf(Root(v), inverse_root, s.eps);
    return __builtin_fmaf(m / denominator, -s.step_size, decayed);
  }
};

// Decay last; eps scaled instead of the root.
struct BitsAndBytes {
  static float Step(const StepScalars& s, float theta, float m, float v) {
    const float step_size = -s.lr * s.root_bc2 / s.bc1;
    const float moved = theta + step_size * (m / (Root(v) + s.root_bc2 * s.eps));
    return moved * s.factor;
  }
};

// torch's expressions as a compiler for GPUs leaves them: reciprocals, approximate roots, lr / bc1 last.
struct Triton {
  static float Step(const StepScalars& s, float theta, float m, float v) {
    const float denominator = FastRoot(v) * FastReciprocal(s.root_bc2) + s.eps;
    return theta * s.factor - (m * FastReciprocal(denominator)) * s.step_size;
  }
};

// first: the gradient; second: not read.
struct Sgd {
  static float Step(const StepScalars& s, float theta, float gradient, float) {
    const float update = gradient + s.decay * theta;
    return theta + -s.lr * update;
  }
};

// first: the momentum buffer, decay included.
struct SgdMomentum {
  static float Step(const StepScalars& s, float theta, float buffer, float) { return theta + -s.lr * buffer; }
};

struct SgdNesterov {
  static float Step(const StepScalars& s, float theta, float gradient, float buffer) {
    const float update = (gradient + s.decay * theta) + s.momentum * buffer;
    return theta + -s.lr * update;
  }
};

template <class AnOrder>
void Loop(const StepScalars& scalars, const float* __restrict first, const float* __restrict second,
          float* __restrict theta, uint32_t n) {
  const StepScalars s = scalars;
  for (uint32_t i = 0; i < n; ++i) theta[i] = AnOrder::Step(s, theta[i], first[i], second[i]);
}

inline StepLoop ChooseLoop(Order order) {
  switch (order) {
    case Order::kTorchSingle: return Loop<TorchSingle>;
    case Order::kTorchForeach: return Loop<TorchForeach>;
    case Order::kTorchCapturable: return Loop<TorchCapturable>;
    case Order::kTorchFusedCuda: return Loop<TorchFusedCuda>;
    case Order::kTransformerEngine: return Loop<TransformerEngine>;
    case Order::kApexFast: return Loop<ApexFast>;
    case Order::kDeepSpeedCpu: return Loop<DeepSpeedCpu>;
    case Order::kBitsAndBytes: return Loop<BitsAndBytes>;
    case Order::kTriton: return Loop<Triton>;
    case Order::kSgd: return Loop<Sgd>;
    case Order::kSgdMomentum: return Loop<SgdMomentum>;
    case Order::kSgdNesterov: return Loop<SgdNesterov>;
  }
  return nullptr;
}

}  // namespace
}  // namespace deltawire::stress
