// What is put to the test: the shipped detector, or one that a test has made wrong.
#pragma once

#include <functional>
#include <string_view>
#include <tl/expected.hpp>

#include "kernels/adamw_band.h"
#include "kernels/sgd_band.h"

namespace deltawire::stress {

struct Subject {
  std::function<tl::expected<kernels::AdamwBand, std::string_view>(const kernels::AdamwHyper&,
                                                                   double moment_error)>
      adamw_band = kernels::MakeAdamwBand;
  std::function<tl::expected<kernels::SgdBand, std::string_view>(const kernels::SgdHyper&)> sgd_band =
      kernels::MakeSgdBand;
  // The rules that a caller of the kernels keeps: members of set Z are compared, and where the served bits
  // are not rounded to even, a weight that stands on a midpoint counts as uncertain.
  bool compares_small = true;
  bool doubts_ties = true;
};

}  // namespace deltawire::stress
