#include "stress/judge.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "kernels/element.h"
#include "stress/failure.h"
#include "stress/flush_scope.h"
#include "stress/oracle.h"

namespace deltawire::stress {
namespace {

bool OnMidpoint(float theta) { return (std::bit_cast<uint32_t>(theta) & 0xFFFF) == 0x8000; }

}  // namespace

tl::expected<kernels::AdamwBand, std::string_view> AdamwBandOf(const Subject& subject, const BatchPlan& plan,
                                                               const Scene& scene) {
  return subject.adamw_band(scene.hyper().adamw,
                            kernels::MomentError(FirstIsBf16(plan.moments), SecondIsBf16(plan.moments)));
}

tl::expected<kernels::SgdBand, std::string_view> SgdBandOf(const Subject& subject, const Scene& scene) {
  return subject.sgd_band(scene.sgd_hyper());
}

void CountNaive(const BatchPlan& plan, const Scene& scene, const uint16_t* before, const uint16_t* after,
                Tally& tally) {
  const kernels::AdamwHyper& h = scene.hyper().adamw;
  const kernels::SgdHyper sgd = scene.sgd_hyper();
  PlainInversion plain{};
  plain.c = 1 - h.lr * h.weight_decay;
  plain.sgd = IsSgd(plan.order);
  plain.lr = plain.sgd ? sgd.lr : h.lr;
  plain.momentum = sgd.mu;
  plain.bc1 = h.bias_correction ? 1 - std::pow(h.beta1, static_cast<double>(h.step)) : 1;
  plain.bc2 = h.bias_correction ? 1 - std::pow(h.beta2, static_cast<double>(h.step)) : 1;
  plain.eps = h.eps;
  plain.half_up = plan.rounding == Rounding::kHalfUp;
  const uint32_t n = scene.elements();
  tally.naive_false_negatives +=
      MissedInFloat(plain, scene.theta(), scene.first_float(), scene.second_float(), before, after, n);
  tally.naive_fp64_false_negatives +=
      MissedInDouble(plain, scene.theta(), scene.first_float(), scene.second_float(), before, after, n);
}

Promise PromiseOf(const kernels::AdamwBand& band) {
  Promise promise{};
  promise.k1 = band.k1;
  promise.k2 = band.k2;
  promise.s = band.s;
  promise.r = band.r;
  promise.eps = band.eps;
  promise.a = band.a;
  promise.b = band.b;
  promise.c = band.c;
  promise.tiny_eps = band.tiny_eps;
  return promise;
}

Promise PromiseOf(const kernels::SgdBand& band) {
  Promise promise{};
  promise.k1 = band.k1;
  promise.k2 = band.k2;
  promise.s = band.s;
  promise.mu = band.mu;
  promise.a = band.a;
  promise.b = band.b;
  promise.c = band.c;
  promise.sgd = true;
  return promise;
}

std::optional<uint32_t> CheckBand(const Promise& promise, const Scene& scene, Tally& tally) {
  uint32_t element = 0;
  const double ratio = WorstBandRatio(promise, scene.before(), scene.theta(), scene.first_float(),
                                      scene.second_float(), scene.elements(), &element);
  constexpr double kEnough = 1e30;  // infinity is no JSON
  tally.worst_band_ratio = std::max(tally.worst_band_ratio, std::min(ratio, kEnough));
  if (!(ratio > 1)) return std::nullopt;
  ++tally.outside_band;
  return element;
}

KernelJudge::KernelJudge(const BatchPlan& plan, const Subject& subject, uint32_t elements)
    : plan_(plan),
      subject_(subject),
      table_(plan.reference ? kernels::RefTable() : kernels::CpuTable()),
      n_(elements),
      before_(n_),
      after_(n_),
      marked_(n_),
      changed_(n_),
      uncertain_(n_),
      small_(n_),
      changed_old_(n_),
      uncertain_low_(n_),
      small_bits_(n_),
      uncertain_span_(n_),
      lists_{changed_.data(),
             changed_old_.data(),
             uncertain_.data(),
             uncertain_low_.data(),
             uncertain_span_.data(),
             0,
             0} {}

std::optional<Promise> KernelJudge::Invert(const Scene& scene) {
  const FlushScope flush(plan_.flush == Flush::kStepAndDetector);
  const kernels::Source theta{scene.theta(), 0}, first{scene.first(), 0};
  if (IsSgd(plan_.order)) {
    const auto band = SgdBandOf(subject_, scene);
    if (!band) return std::nullopt;
    const bool nesterov = plan_.order == Order::kSgdNesterov;
    table_.invert_sgd(theta, first, {nesterov ? scene.second() : nullptr, 0}, *band, n_, 0, 0, nullptr,
                      &lists_);
    return PromiseOf(*band);
  }
  const auto band = AdamwBandOf(subject_, plan_, scene);
  if (!band) return std::nullopt;
  table_.invert_adamw(theta, first, {scene.second(), 0},
                      {FirstIsBf16(plan_.moments), SecondIsBf16(plan_.moments)}, *band, n_, 0, 0, nullptr,
                      &lists_);
  return PromiseOf(*band);
}

void KernelJudge::MarkSmall(const Scene& scene) {
  uint32_t count = 0;
  if (plan_.rounding == Rounding::kHalfUp) {
    for (uint32_t i = 0; i < n_; ++i) {
      if (kernels::InSetZ(before_[i])) small_[count++] = i;
    }
  } else {
    const FlushScope flush(plan_.flush == Flush::kStepAndDetector);
    count = table_.select_small({scene.before(), 0}, kernels::Cast::kF32ToBf16, n_, small_.data(),
                                small_bits_.data());
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (before_[small_[i]] != after_[small_[i]]) marked_[small_[i]] = 1;
  }
}

std::string KernelJudge::VerdictOn(uint32_t element) const {
  for (uint32_t i = 0; i < lists_.changed_count; ++i) {
    if (changed_[i] == element) return fmt::format("changed from 0x{:04x}", changed_old_[i]);
  }
  for (uint32_t i = 0; i < lists_.uncertain_count; ++i) {
    if (uncertain_[i] != element) continue;
    return fmt::format("uncertain, span {}, low 0x{:04x}", uncertain_span_[i], uncertain_low_[i]);
  }
  return "same";
}

void KernelJudge::Note(const Scene& scene, uint64_t step, uint32_t element, const char* what,
                       BatchResult& result) const {
  if (result.failure) return;
  result.failure = DescribeFailure(plan_, scene, step, element, what, before_[element], after_[element],
                                   VerdictOn(element));
}

void KernelJudge::Mark(const Scene& scene, uint64_t step, BatchResult& result) {
  Tally& tally = result.tally;
  const auto wrong = [&](uint32_t element) {
    ++tally.wrong_certificates;
    Note(scene, step, element, "wrong certificate", result);
  };
  std::fill(marked_.begin(), marked_.end(), 0);
  for (uint32_t i = 0; i < lists_.changed_count; ++i) {
    const uint32_t element = changed_[i];
    marked_[element] = 1;
    if (changed_old_[i] != before_[element]) wrong(element);
  }
  for (uint32_t i = 0; i < lists_.uncertain_count; ++i) {
    const uint32_t element = uncertain_[i];
    const uint16_t low = uncertain_low_[i], old = before_[element];
    marked_[element] = 1;
    if (uncertain_span_[i] == 1 && !IsEither(low, old)) wrong(element);
  }
  tally.certificates += lists_.changed_count;
  tally.uncertain += lists_.uncertain_count;
  if (plan_.rounding == Rounding::kHalfUp && subject_.doubts_ties) {
    for (uint32_t i = 0; i < n_; ++i) {
      if (marked_[i] == 0 && OnMidpoint(scene.theta()[i])) {
        marked_[i] = 1;
        ++tally.uncertain;
      }
    }
  }
  if (subject_.compares_small) MarkSmall(scene);
}

void KernelJudge::Judge(const Scene& scene, uint64_t step, BatchResult& result) {
  Tally& tally = result.tally;
  const bool half_up = plan_.rounding == Rounding::kHalfUp;
  Export(scene.before(), half_up, before_.data(), n_);
  Export(scene.theta(), half_up, after_.data(), n_);
  tally.elements += n_;
  const std::optional<Promise> promise = Invert(scene);
  if (!promise) {
    tally.refused += n_;
    lists_.changed_count = lists_.uncertain_count = 0;
    Note(scene, step, 0, "refused", result);
    return;
  }
  Mark(scene, step, result);
  const Comparison comparison = Compare(before_.data(), after_.data(), marked_.data(), n_);
  tally.changed += comparison.changed;
  tally.false_negatives += comparison.missed;
  tally.excess += comparison.excess;
  if (comparison.missed != 0 && !result.failure) {
    uint32_t element = 0;
    while (before_[element] == after_[element] || marked_[element] != 0) ++element;
    Note(scene, step, element, "false negative", result);
  }
  if (const auto element = CheckBand(*promise, scene, tally)) {
    Note(scene, step, *element, "outside the band", result);
  }
  CountNaive(plan_, scene, before_.data(), after_.data(), tally);
}

}  // namespace deltawire::stress
