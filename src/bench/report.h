// The measured figures, for people and for machines.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace deltawire::bench {

// value and floor are in `unit`; ratio = value / floor. Less is better, unless there is a min_value.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> floor = std::nullopt;
  // What the figure must not exceed, where something is required of it.
  std::optional<double> max_ratio = std::nullopt;
  std::optional<double> max_value = std::nullopt;
  // Or what it must reach: figures that are themselves "so many times the floor's speed".
  std::optional<double> min_value = std::nullopt;
  std::string note = {};  // for people: absolutes, counts

  std::optional<double> ratio() const;
  // nullopt: nothing is required.
  std::optional<bool> met() const;
};

class Report {
 public:
  void Add(Figure figure) { figures_.push_back(std::move(figure)); }
  // A figure that could not be measured, and why: shown in the table, absent from the JSON.
  void AddMissing(std::string name, std::string why) {
    missing_.emplace_back(std::move(name), std::move(why));
  }

  // Aligned columns: name, value, floor, ratio, what is required and whether it is met (with verdicts), note.
  std::string Table(bool verdicts) const;
  // A list of {name, value, unit, floor, ratio}; null where a figure has no floor.
  nlohmann::ordered_json Json() const;

 private:
  std::vector<Figure> figures_;
  std::vector<std::pair<std::string, std::string>> missing_;
};

}  // namespace deltawire::bench
