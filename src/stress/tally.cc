#include "stress/tally.h"

#include <algorithm>

namespace deltawire::stress {

Tally& Tally::operator+=(const Tally& other) {
  elements += other.elements;
  changed += other.changed;
  false_negatives += other.false_negatives;
  certificates += other.certificates;
  wrong_certificates += other.wrong_certificates;
  uncertain += other.uncertain;
  excess += other.excess;
  naive_false_negatives += other.naive_false_negatives;
  naive_fp64_false_negatives += other.naive_fp64_false_negatives;
  worst_band_ratio = std::max(worst_band_ratio, other.worst_band_ratio);
  outside_band += other.outside_band;
  refused += other.refused;
  return *this;
}

}  // namespace deltawire::stress
