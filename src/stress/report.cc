#include "stress/report.h"

#include <array>
#include <utility>

#include "format/json.h"

namespace deltawire::stress {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kFormat = "deltawire.stress";
constexpr uint64_t kFormatVersion = 1;
constexpr uint64_t kMaxStateBytes = 16u << 20;

constexpr std::array<std::pair<const char*, uint64_t Tally::*>, 11> kCounts = {{
    {"elements", &Tally::elements},
    {"changed", &Tally::changed},
    {"false_negatives", &Tally::false_negatives},
    {"certificates", &Tally::certificates},
    {"wrong_certificates", &Tally::wrong_certificates},
    {"uncertain", &Tally::uncertain},
    {"excess", &Tally::excess},
    {"naive_false_negatives", &Tally::naive_false_negatives},
    {"naive_fp64_false_negatives", &Tally::naive_fp64_false_negatives},
    {"outside_band", &Tally::outside_band},
    {"refused", &Tally::refused},
}};

ordered_json TallyJson(const Tally& tally) {
  ordered_json json;
  for (const auto& [name, count] : kCounts) json[name] = tally.*count;
  const auto share = [&](uint64_t part) {
    return tally.elements == 0
               ? ordered_json(nullptr)
               : ordered_json(static_cast<double>(part) / static_cast<double>(tally.elements));
  };
  json["worst_band_ratio"] = tally.worst_band_ratio;
  json["changed_share"] = share(tally.changed);
  json["uncertain_share"] = share(tally.uncertain);
  json["excess_share"] = share(tally.excess);
  return json;
}

Result<double> NumberAt(const nlohmann::json& object, const format::JsonObject& json, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number() || !(found->get<double>() >= 0)) {
    return Fail(Code::kCorrupt, "{} is not a number of at least 0", json.Path(name));
  }
  return found->get<double>();
}

Result<Tally> TallyFrom(const nlohmann::json& object, const format::JsonObject& json) {
  Tally tally;
  DELTAWIRE_ASSIGN(tally.worst_band_ratio, NumberAt(object, json, "worst_band_ratio"));
  for (const auto& [name, count] : kCounts) {
    DELTAWIRE_ASSIGN(tally.*count, json.Unsigned(name));
  }
  return tally;
}

ordered_json FailureJson(const Failure& failure) {
  ordered_json facts = ordered_json::array();
  for (const auto& [name, value] : failure.facts) facts.push_back({name, value});
  return {{"what", failure.what}, {"batch", failure.batch}, {"case", std::move(facts)}};
}

Result<Failure> FailureFrom(const format::JsonObject& json) {
  Failure failure;
  DELTAWIRE_ASSIGN(failure.what, json.String("what"));
  DELTAWIRE_ASSIGN(failure.batch, json.Unsigned("batch"));
  DELTAWIRE_ASSIGN(const nlohmann::json* facts, json.Array("case"));
  for (const nlohmann::json& fact : *facts) {
    if (!fact.is_array() || fact.size() != 2 || !fact[0].is_string() || !fact[1].is_string()) {
      return Fail(Code::kCorrupt, "{} is not a list of pairs of strings", json.Path("case"));
    }
    failure.facts.emplace_back(fact[0].get<std::string>(), fact[1].get<std::string>());
  }
  return failure;
}

}  // namespace

ordered_json ReportJson(const Progress& progress, bool complete) {
  ordered_json json = {{"format", kFormat},
                       {"format_version", kFormatVersion},
                       {"plan_version", kPlanVersion},
                       {"complete", complete},
                       {"seed", progress.seed},
                       {"first_batch", progress.first_batch},
                       {"next_batch", progress.next_batch}};
  json.update(TallyJson(progress.totals.all));
  json["seconds"] = progress.seconds;
  json["elements_per_second"] =
      progress.seconds > 0 ? static_cast<double>(progress.totals.all.elements) / progress.seconds : 0.0;
  json["first_failure"] =
      progress.totals.first_failure ? FailureJson(*progress.totals.first_failure) : ordered_json(nullptr);
  ordered_json by = ordered_json::object();
  for (const auto& [dimension, values] : progress.totals.by) {
    for (const auto& [value, tally] : values) by[dimension][value] = TallyJson(tally);
  }
  json["by"] = std::move(by);
  return json;
}

Result<Progress> ProgressFromJson(ByteSpan text) {
  DELTAWIRE_ASSIGN(const nlohmann::json document,
                   format::ParseJson(text, {.max_bytes = kMaxStateBytes}, "stress state"));
  DELTAWIRE_ASSIGN(const auto json, format::JsonObject::From(document, "stress state"));
  DELTAWIRE_TRY(json.CheckFormat(kFormat, kFormatVersion));
  DELTAWIRE_ASSIGN(const uint64_t plan, json.Unsigned("plan_version"));
  if (plan != kPlanVersion) {
    return Fail(Code::kMismatch,
                "the state is of plan {}, this program runs plan {}: their batches differ; start a new one",
                plan, kPlanVersion);
  }
  Progress progress;
  DELTAWIRE_ASSIGN(progress.seed, json.Unsigned("seed"));
  DELTAWIRE_ASSIGN(progress.first_batch, json.Unsigned("first_batch"));
  DELTAWIRE_ASSIGN(progress.next_batch, json.Unsigned("next_batch"));
  DELTAWIRE_ASSIGN(progress.totals.all, TallyFrom(document, json));
  DELTAWIRE_ASSIGN(progress.seconds, NumberAt(document, json, "seconds"));
  if (document.contains("first_failure") && !document["first_failure"].is_null()) {
    DELTAWIRE_ASSIGN(const auto failure, json.Object("first_failure"));
    DELTAWIRE_ASSIGN(progress.totals.first_failure, FailureFrom(failure));
  }
  DELTAWIRE_ASSIGN(const auto by, json.Object("by"));
  for (const auto& [dimension, values] : document["by"].items()) {
    DELTAWIRE_ASSIGN(const auto dimension_json, by.Object(dimension));
    for (const auto& [value, tally] : values.items()) {
      DELTAWIRE_ASSIGN(const auto tally_json, dimension_json.Object(value));
      DELTAWIRE_ASSIGN(progress.totals.by[dimension][value], TallyFrom(tally, tally_json));
    }
  }
  return progress;
}

}  // namespace deltawire::stress
