#include "kernels/adamw_band.h"

#include <cmath>
#include <limits>

namespace deltawire::kernels {
namespace {

constexpr double kRoundOff = 0x1p-24;  // of float32
// How far the kernel's beta^t may be off, in round-offs of the logarithm: any method up to device fast-math
// power and a 4-ulp powf.
constexpr double kPower1 = 12;
constexpr double kPower2 = 6;
// Operation order, approximate division and root, flushed subnormal v, and this side's own evaluation.
constexpr double kUpdateError = 0x1p-19;
constexpr double kSecondOrder = 1.001;

}  // namespace

tl::expected<AdamwBand, std::string_view> MakeAdamwBand(const AdamwHyper& hyper, double moment_error) {
  const auto no = [](std::string_view reason) { return tl::make_unexpected(reason); };
  if (!std::isfinite(hyper.lr) || !std::isfinite(hyper.weight_decay) || !std::isfinite(hyper.beta1) ||
      !std::isfinite(hyper.beta2) || !std::isfinite(hyper.eps) || !std::isfinite(moment_error)) {
    return no("a hyperparameter is not finite");
  }
  if (hyper.lr < 0) return no("lr is negative");
  const double lambda = hyper.lr * hyper.weight_decay;
  if (!(lambda >= 0 && lambda <= 0.5)) return no("lr * weight_decay is outside [0, 1/2]");
  if (!(hyper.beta1 >= 0 && hyper.beta1 <= 0.9999)) return no("beta1 is outside [0, 0.9999]");
  if (!(hyper.beta2 >= 0 && hyper.beta2 <= 0.9999)) return no("beta2 is outside [0, 0.9999]");
  // A float32 kernel turns a smaller eps into 0 or a subnormal, and then 0 / 0 is possible.
  if (!(hyper.eps >= std::numeric_limits<float>::min())) return no("eps is not a positive normal float32");
  if (hyper.step == 0) return no("the step counter is 0");
  if (!(moment_error >= 0 && moment_error < 1))
    return no("the error of the stored moments is outside [0, 1)");

  const double c = 1 - lambda;
  const double t = static_cast<double>(hyper.step);
  const double correction1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, t) : 1;
  const double correction2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, t) : 1;
  const double delta = kUpdateError +
                       kRoundOff * (kPower1 / (1 - hyper.beta1) + kPower2 / (1 - hyper.beta2)) + 2 * lambda +
                       moment_error;
  const double a = kSecondOrder * 3 * kRoundOff / c + 8 * kRoundOff * lambda / c;
  const double b = kSecondOrder * (10 * kRoundOff + delta) / c;
  const double floor = 0x1p-124 * (16 + (1 + hyper.lr / correction1) / hyper.eps);

  const AdamwBand band{
      .k1 = static_cast<float>(lambda / c),
      .k2 = static_cast<float>(1 / c),
      .s = static_cast<float>(hyper.lr / correction1),
      .r = static_cast<float>(1 / correction2),
      .eps = static_cast<float>(hyper.eps),
      .a = static_cast<float>(a),
      .b = static_cast<float>(b),
      .c = static_cast<float>(floor),
      .tiny_eps = hyper.eps < 0x1p-36,
      // A BF16 m of zero was less than 2^-134: the update less than 2^-114, well inside set Z (2^-111).
      .idle_stays = moment_error == 0 || hyper.lr / correction1 / hyper.eps <= 0x1p20,
  };
  if (!std::isfinite(band.s) || !std::isfinite(band.r) || !std::isfinite(band.b) || !std::isfinite(band.c) ||
      !std::isfinite(band.eps)) {
    return no("the constants of the band overflow float32");
  }
  return band;
}

}  // namespace deltawire::kernels
