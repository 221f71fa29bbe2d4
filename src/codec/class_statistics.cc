#include "codec/class_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "codec/ordinal.h"

namespace deltawire::codec {
namespace {

// Bits of a class with a table and a count in each block: an additional class must save more than that.
constexpr double kClassCost = 600;

double Log2Times(double count, double of) { return count > 0 ? count * std::log2(of / count) : 0; }

// n elements, c of them changed, x of those not by +-1.
double CodeLength(double n, double c, double x) {
  return Log2Times(c, n) + Log2Times(n - c, n) + Log2Times(x, c) + Log2Times(c - x, c) + (c - x);
}

}  // namespace

void ClassStatistics::AddSample(uint32_t width, uint32_t elements, ByteSpan some) {
  WithWidth(width, [&](auto zero) {
    using U = decltype(zero);
    const size_t count = some.size() / sizeof(U);
    if (count == 0) return;
    // Four counters a key, or equal neighbours would wait for each other.
    std::array<std::array<uint32_t, 4>, kKeys> found{};
    for (size_t i = 0; i < count; ++i) ++found[ClassKey(LoadLe<U>(some.data() + i * sizeof(U)))][i % 4];
    const double weight = static_cast<double>(elements) / static_cast<double>(count);
    for (uint32_t key = 0; key < kKeys; ++key) {
      elements_[key] += weight * (found[key][0] + found[key][1] + found[key][2] + found[key][3]);
    }
  });
}

void ClassStatistics::AddChanges(const BlockChanges& block) {
  changes_ += block.changed.size();
  WithWidth(block.width, [&](auto zero) {
    using U = decltype(zero);
    // [i % 4][escape][key]: four counters a key, as above.
    std::array<std::array<std::array<uint32_t, kKeys>, 2>, 4> found{};
    const size_t count = block.old_bits.size() / sizeof(U);
    for (size_t i = 0; i < count; ++i) {
      const U before = LoadLe<U>(block.old_bits.data() + i * sizeof(U));
      const U after = LoadLe<U>(block.new_bits.data() + i * sizeof(U));
      const U step = static_cast<U>(Ordinal(after) - Ordinal(before));
      // Arithmetic: a branch would be taken at random.
      const unsigned escape = unsigned{step != 1} & unsigned{step != static_cast<U>(~U{0})};
      ++found[i % 4][escape][ClassKey(before)];
    }
    for (uint32_t key = 0; key < kKeys; ++key) {
      for (const auto& part : found) {
        changed_[key] += part[0][key] + part[1][key];
        escapes_[key] += part[1][key];
      }
    }
  });
}

kernels::ClassCuts ClassStatistics::Choose(uint32_t most) const {
  // Prefix sums over the keys that occur. A sample may have missed what changed.
  std::vector<uint8_t> keys;
  std::vector<double> n{0};
  std::vector<double> c{0};
  std::vector<double> x{0};
  for (uint32_t key = 0; key < kKeys; ++key) {
    if (elements_[key] == 0 && changed_[key] == 0) continue;
    keys.push_back(static_cast<uint8_t>(key));
    n.push_back(n.back() + std::max(elements_[key], changed_[key]));
    c.push_back(c.back() + changed_[key]);
    x.push_back(x.back() + escapes_[key]);
  }
  const size_t count = keys.size();
  kernels::ClassCuts cuts{};
  cuts.classes = 1;
  if (count < 2) return cuts;
  const auto cost = [&](size_t from, size_t to) {
    return CodeLength(n[to] - n[from], c[to] - c[from], x[to] - x[from]) + kClassCost;
  };
  // best[k][i]: the first i keys in k + 1 classes; start: where the last of them begins.
  const size_t classes = std::min<size_t>(most, count);
  std::vector<std::vector<double>> best(classes, std::vector<double>(count + 1));
  std::vector<std::vector<size_t>> start(classes, std::vector<size_t>(count + 1));
  for (size_t i = 1; i <= count; ++i) best[0][i] = cost(0, i);
  for (size_t k = 1; k < classes; ++k) {
    for (size_t i = k + 1; i <= count; ++i) {
      best[k][i] = std::numeric_limits<double>::infinity();
      for (size_t from = k; from < i; ++from) {
        const double total = best[k - 1][from] + cost(from, i);
        if (total < best[k][i]) {
          best[k][i] = total;
          start[k][i] = from;
        }
      }
    }
  }
  size_t chosen = 0;
  for (size_t k = 1; k < classes; ++k) {
    if (best[k][count] < best[chosen][count]) chosen = k;
  }
  cuts.classes = static_cast<uint32_t>(chosen) + 1;
  size_t end = count;
  for (size_t k = chosen; k > 0; --k) {
    end = start[k][end];
    cuts.cut[k - 1] = keys[end];
  }
  return cuts;
}

std::array<double, kernels::kMaxClasses> ClassStatistics::Rates(const kernels::ClassCuts& cuts) const {
  std::array<double, kernels::kMaxClasses> elements{};
  std::array<double, kernels::kMaxClasses> changed{};
  uint32_t c = 0;
  for (uint32_t key = 0; key < kKeys; ++key) {
    while (c + 1 < cuts.classes && cuts.cut[c] <= key) ++c;
    elements[c] += std::max(elements_[key], changed_[key]);
    changed[c] += changed_[key];
  }
  for (uint32_t each = 0; each < cuts.classes; ++each) {
    if (elements[each] > 0) changed[each] /= elements[each];
  }
  return changed;
}

}  // namespace deltawire::codec
