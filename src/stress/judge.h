// Verdicts on one step against the truth.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "stress/oracle.h"
#include "stress/plan.h"
#include "stress/scene.h"
#include "stress/subject.h"
#include "stress/tally.h"

namespace deltawire::stress {

// What a batch has come to so far.
struct BatchResult {
  Tally tally;
  std::optional<Failure> failure;  // the first one
};

// The detector's constants for the scene's last step, or why it declines.
tl::expected<kernels::AdamwBand, std::string_view> AdamwBandOf(const Subject& subject, const BatchPlan& plan,
                                                               const Scene& scene);
tl::expected<kernels::SgdBand, std::string_view> SgdBandOf(const Subject& subject, const Scene& scene);

// Adds what plain inversion misses in the scene's last step. before, after: its true served bits.
void CountNaive(const BatchPlan& plan, const Scene& scene, const uint16_t* before, const uint16_t* after,
                Tally& tally);

// Whether `old` is `low` or the next in the order of sign and magnitude: for negative values the smaller
// magnitude.
inline bool IsEither(uint16_t low, uint16_t old) {
  const auto next = static_cast<uint16_t>(low == 0x8000 ? 0 : (low & 0x8000) != 0 ? low - 1 : low + 1);
  return old == low || old == next;
}

// What a band promises. CheckBand holds the scene's last step to it; the element that breaks it most, if one
// does.
Promise PromiseOf(const kernels::AdamwBand& band);
Promise PromiseOf(const kernels::SgdBand& band);
std::optional<uint32_t> CheckBand(const Promise& promise, const Scene& scene, Tally& tally);

// The kernel's verdict on single steps, with the rules of Subject around it.
class KernelJudge {
 public:
  KernelJudge(const BatchPlan& plan, const Subject& subject, uint32_t elements);

  // Of the scene's last step, which is the batch's step number `step`.
  void Judge(const Scene& scene, uint64_t step, BatchResult& result);

 private:
  // The band that it used; nullopt when there is none.
  std::optional<Promise> Invert(const Scene& scene);
  void Mark(const Scene& scene, uint64_t step, BatchResult& result);
  void MarkSmall(const Scene& scene);
  std::string VerdictOn(uint32_t element) const;
  void Note(const Scene& scene, uint64_t step, uint32_t element, const char* what, BatchResult& result) const;

  const BatchPlan& plan_;
  const Subject& subject_;
  const kernels::Table& table_;
  uint32_t n_;
  std::vector<uint16_t> before_, after_;
  std::vector<uint8_t> marked_;
  std::vector<uint32_t> changed_, uncertain_, small_;
  std::vector<uint16_t> changed_old_, uncertain_low_, small_bits_;
  std::vector<uint8_t> uncertain_span_;
  kernels::Inverted lists_;
};

// detect::TensorWatch from the first step to the last: observes each, is collected after every plan.interval.
Result<BatchResult> JudgeWatch(const BatchPlan& plan, const Subject& subject, Scene& scene);

}  // namespace deltawire::stress
