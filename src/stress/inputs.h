// Weights, gradients and moments for the stress program, as bulk loops. Arrays have n elements and don't
// overlap. Needs ProcessorRunsOrders().
#pragma once

#include <cstdint>

#include "stress/plan.h"

namespace deltawire::stress {

// A stream of random numbers: element i's is a function of the stream's key and i, so loops over elements
// vectorise and nothing depends on the order of work.
struct Noise {
  uint32_t first = 0, second = 0;
};

// ---- one step, aimed at the edges of BF16 cells

struct Aim {
  Noise noise[6];
  bool sgd = false;
  bool nesterov = false;  // second is a buffer with factor `momentum`
  float lr = 0, step_size = 0, inverse_bc2 = 1, eps = 0, momentum = 0;
  float decay = 0;      // of SGD: inside its update
  float inverse_c = 1;  // 1 / (1 - lambda)
  float factor = 1;     // 1 - lambda as the kernel rounds it
  // To be stored as BF16: aim at the worst rounding errors, too.
  bool round_first = false, round_second = false;
  bool wild = false;
};

// theta is 0 ... 4 units from a midpoint between two BF16 values, or the step brings it there (every other
// element); updates are 2^-4 ... 2^22 units. first and second: what the step's kernel holds in registers.
void AimStep(const Aim& aim, float* theta, float* first, float* second, uint32_t n);
// The same for weights that are where they are: the step brings them next to a midpoint, at most a few cells
// away.
void AimFrom(const Aim& aim, const float* theta, float* first, float* second, uint32_t n);

// ---- training

struct Parameter {
  float* theta;
  float* first;    // as stored
  float* second;   // as stored
  float* largest;  // AMSGrad: the largest second moment, as stored
  float* scale;    // of the element's gradients
  float* mean;     // of its gradients, in units of scale
};

struct Training {
  float deviation = 0;    // of theta
  bool troubled = false;  // zeros of both signs, and elements without gradients
  float beta1 = 0, beta2 = 0;
  bool warm = false;  // moments as after long training; otherwise zero
};
void BeginTraining(const Noise noise[4], const Training& training, const Parameter& p, uint32_t n);

struct Gradients {
  Noise noise[2];
  float beta1 = 0, beta2 = 0;
  float l2 = 0;  // decay that goes through the moments, or through SGD's buffer
  bool maximize = false;
  bool amsgrad = false;
  bool sgd = false;
  bool nesterov = false;
  float momentum = 0;  // SGD: of the buffer; 0: there is none
};
// What the next step's kernel holds in registers: Adam's first moment, its second moment and (AMSGrad) the
// largest second moment, which it divides by; without AMSGrad `largest` is the second moment again. SGD: the
// gradient or (momentum) the buffer; with Nesterov the gradient and the buffer.
struct Registers {
  float* first;
  float* second;
  float* largest;
};
void NextMoments(const Gradients& gradients, const Parameter& p, const Registers& out, uint32_t n);

// ---- storage

// out = x rounded to BF16, to nearest even, NaN kept; both as float32.
void RoundToBf16(const float* x, float* out, uint32_t n);

}  // namespace deltawire::stress
