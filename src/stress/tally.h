// What the stress program counts, and the first thing that went wrong.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace deltawire::stress {

// Counts of element-steps unless it says otherwise.
struct Tally {
  uint64_t elements = 0;
  uint64_t changed = 0;          // served bits differ before and after (TensorWatch: from publish to publish)
  uint64_t false_negatives = 0;  // of them, neither listed nor in set Z
  uint64_t certificates = 0;     // listed with an old value
  uint64_t wrong_certificates = 0;     // which was not the old value; or neighbours that don't contain it
  uint64_t uncertain = 0;              // listed without an old value
  uint64_t excess = 0;                 // listed, though served bits are the same
  uint64_t naive_false_negatives = 0;  // plain inversion in float32
  uint64_t naive_fp64_false_negatives = 0;  // in double
  uint64_t refused = 0;  // steps that the detector declined, or blocks that it gave up; none is expected
  // The largest true error of an estimate, in widths of its band: above 1 the proof is wrong.
  double worst_band_ratio = 0;
  uint64_t outside_band = 0;  // calls of the kernel in which it was

  Tally& operator+=(const Tally& other);
  // Must not happen.
  uint64_t failures() const { return false_negatives + wrong_certificates + outside_band + refused; }
  friend bool operator==(const Tally&, const Tally&) = default;
};

// One element, with everything that is needed to do its step again.
struct Failure {
  uint64_t batch = 0;
  std::string what;  // "false negative", "wrong certificate", "refused"
  // In a fixed order; float32 and bits in hexadecimal.
  std::vector<std::pair<std::string, std::string>> facts;

  friend bool operator==(const Failure&, const Failure&) = default;
};

// Sums over batches. The order of adding doesn't matter.
struct Totals {
  Tally all;
  // By dimension and value: "order" -> "triton" -> ... (LabelsOf).
  std::map<std::string, std::map<std::string, Tally>, std::less<>> by;
  // Of the batch with the lowest number.
  std::optional<Failure> first_failure;

  friend bool operator==(const Totals&, const Totals&) = default;
};

}  // namespace deltawire::stress
