// The truth about a step, and what inversion without a band would say of it. Nothing is shared with the
// detector.
#pragma once

#include <cstdint>

namespace deltawire::stress {

// Served BF16 of n float32 weights; NaN gives 0xFFFF. half_up: half away from zero instead of to even.
void Export(const float* theta, bool half_up, uint16_t* served, uint32_t n);

// Plain inversion: theta = (theta' + u) / c in float32 or in double, rounded and compared.
struct PlainInversion {
  double c, lr, bc1, bc2, eps;  // AdamW: u = lr / bc1 * first / (sqrt(second / bc2) + eps)
  bool sgd;                     // u = lr * (first + momentum * second)
  double momentum;
  bool half_up;
};
// How many of n elements it takes for unchanged though their served bits differ. theta, first, second: as
// stored after the step.
uint64_t MissedInFloat(const PlainInversion& step, const float* theta, const float* first,
                       const float* second, const uint16_t* before, const uint16_t* after, uint32_t n);
uint64_t MissedInDouble(const PlainInversion& step, const float* theta, const float* first,
                        const float* second, const uint16_t* before, const uint16_t* after, uint32_t n);

// What the proof promises of a step: |theta - (theta' + D)| <= a |theta'| + (b size + c) with D = k1 theta' +
// k2 u. AdamW: u = s first / (sqrt(second r) + eps), size = |u|. SGD: u = s (first + mu second), size = |s|
// (|first| + |mu second|). Only for weights and moments in its range.
struct Promise {
  double k1, k2, s, a, b, c;
  double r, eps;
  bool tiny_eps;  // nothing is promised where first != 0 and second < 2^-100
  bool sgd;
  double mu;
};
// The largest ratio of the two sides, evaluated in double. theta_before and theta_after: the true weights;
// first and second as stored. index receives its element when it is above 1.
double WorstBandRatio(const Promise& promise, const float* theta_before, const float* theta_after,
                      const float* first, const float* second, uint32_t n, uint32_t* index);

// How many differ; how many differ and have no mark; how many are marked and don't differ.
struct Comparison {
  uint64_t changed = 0, missed = 0, excess = 0;
};
Comparison Compare(const uint16_t* before, const uint16_t* after, const uint8_t* marked, uint32_t n);

}  // namespace deltawire::stress
