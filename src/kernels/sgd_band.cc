#include "kernels/sgd_band.h"

#include <cmath>
#include <limits>

namespace deltawire::kernels {
namespace {

constexpr double kRoundOff = 0x1p-24;  // of float32
constexpr double kSecondOrder = 1.001;
// Roundings in the update, the kernel's and ours, of any order of operations.
constexpr double kUpdateRoundings = 24;

// Zero, or a number that a kernel may round to float32 with a relative error of one round-off.
bool Rounds(double x) {
  const double size = std::fabs(x);
  return size == 0 || (size >= static_cast<double>(std::numeric_limits<float>::min()) &&
                       size <= static_cast<double>(std::numeric_limits<float>::max()));
}

}  // namespace

tl::expected<SgdBand, std::string_view> MakeSgdBand(const SgdHyper& hyper) {
  const auto no = [](std::string_view reason) { return tl::make_unexpected(reason); };
  if (!std::isfinite(hyper.lr) || !std::isfinite(hyper.weight_decay) || !std::isfinite(hyper.mu)) {
    return no("a hyperparameter is not finite");
  }
  if (!Rounds(hyper.lr) || !Rounds(hyper.weight_decay) || !Rounds(hyper.mu)) {
    return no("a hyperparameter is outside the normal range of float32");
  }
  const double lambda = hyper.lr * hyper.weight_decay;
  if (!(lambda >= 0 && lambda <= 0.5)) return no("lr * weight_decay is outside [0, 1/2]");

  const double c = 1 - lambda;
  const double size = std::fabs(hyper.lr);
  const SgdBand band{
      .k1 = static_cast<float>(lambda / c),
      .k2 = static_cast<float>(1 / c),
      .s = static_cast<float>(hyper.lr),
      .mu = static_cast<float>(hyper.mu),
      .a = static_cast<float>(kSecondOrder * kRoundOff * (3 + 16 * lambda) / c),
      .b = static_cast<float>(kSecondOrder * kRoundOff * kUpdateRoundings / c),
      .c = static_cast<float>(0x1p-124 * (16 + 8 * size * (1 + std::fabs(hyper.mu)))),
  };
  if (!std::isfinite(band.c)) return no("the constants of the band overflow float32");
  return band;
}

}  // namespace deltawire::kernels
