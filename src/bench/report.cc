#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace deltawire::bench {
namespace {

std::string NumberText(double value) {
  if (value >= 100) return fmt::format("{:.1f}", value);
  return value >= 1 ? fmt::format("{:.2f}", value) : fmt::format("{:.3f}", value);
}

std::string RequiredText(const Figure& figure) {
  if (figure.max_ratio) return fmt::format("ratio <= {:.2f}", *figure.max_ratio);
  if (figure.max_value) return "<= " + NumberText(*figure.max_value);
  if (figure.min_value) return ">= " + NumberText(*figure.min_value);
  return "";
}

}  // namespace

std::optional<double> Figure::ratio() const {
  if (!floor || *floor <= 0) return std::nullopt;
  return value / *floor;
}

std::optional<bool> Figure::met() const {
  if (max_ratio && ratio()) return *ratio() <= *max_ratio;
  if (max_value) return value <= *max_value;
  if (min_value) return value >= *min_value;
  return std::nullopt;
}

std::string Report::Table(bool verdicts) const {
  using Row = std::array<std::string, 8>;
  std::vector<Row> rows = {{"name", "value", "unit", "floor", "ratio", "must", "", "note"}};
  for (const Figure& figure : figures_) {
    const auto ratio = figure.ratio();
    const auto met = figure.met();
    rows.push_back({figure.name, NumberText(figure.value), figure.unit,
                    figure.floor ? NumberText(*figure.floor) : "", ratio ? fmt::format("{:.2f}", *ratio) : "",
                    RequiredText(figure), met && verdicts ? (*met ? "met" : "MISSED") : "", figure.note});
  }
  std::array<size_t, 8> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool number = i == 1 || i == 3 || i == 4;
      line +=
          number ? fmt::format("{:>{}}  ", row[i], widths[i]) : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  for (const auto& [name, why] : missing_) out += fmt::format("{}: not measured: {}\n", name, why);
  return out;
}

nlohmann::ordered_json Report::Json() const {
  auto list = nlohmann::ordered_json::array();
  for (const Figure& figure : figures_) {
    nlohmann::ordered_json entry;
    entry["name"] = figure.name;
    entry["value"] = figure.value;
    entry["unit"] = figure.unit;
    entry["floor"] = nullptr;
    entry["ratio"] = nullptr;
    if (figure.floor) entry["floor"] = *figure.floor;
    if (const auto ratio = figure.ratio()) entry["ratio"] = *ratio;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace deltawire::bench
