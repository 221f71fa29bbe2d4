// deltawire stress detect: looks for a weight that detection misses.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "cli/command.h"
#include "cli/patch_options.h"
#include "cli/stop_signals.h"
#include "pubsub/file_io.h"
#include "stress/report.h"
#include "stress/run.h"
#include "tensor/memory.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string count = "1e8";
  uint64_t seed = 1;
  std::optional<uint64_t> batch;
  std::string json;
  std::string state;
  std::shared_ptr<int> threads;
};

// "100000000" and "1e8"; nullopt for anything else, 0, and what is above 1e18.
std::optional<uint64_t> CountFrom(const std::string& text) {
  const char* const end = text.data() + text.size();
  uint64_t whole = 0;
  if (const auto [at, error] = std::from_chars(text.data(), end, whole); error == std::errc() && at == end) {
    return whole > 0 && whole <= 1'000'000'000'000'000'000 ? std::optional(whole) : std::nullopt;
  }
  double number = 0;
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || at != end || !(number >= 1 && number <= 1e18)) return std::nullopt;
  return static_cast<uint64_t>(std::ceil(number));
}

std::string CheckCount(const std::string& text) {
  return CountFrom(text) ? "" : text + " is not a number of element-steps, such as 100000000 or 1e8";
}

Status Save(const Options& options, const stress::Progress& progress, bool complete) {
  const std::string text = stress::ReportJson(progress, complete).dump(2) + "\n";
  const ByteSpan bytes = AsBytes(text);
  for (const std::string& path : {options.json, options.state}) {
    if (!path.empty()) DELTAWIRE_TRY(pubsub::WriteFileDurably(path, {&bytes, 1}));
  }
  return {};
}

// Where the state left off, or the beginning.
Result<stress::Progress> Begin(const Options& options) {
  stress::Progress progress;
  progress.seed = options.seed;
  progress.first_batch = progress.next_batch = options.batch.value_or(0);
  std::error_code error;
  if (options.state.empty() || !fs::exists(options.state, error)) return progress;
  DELTAWIRE_ASSIGN(const auto file, MapFile(options.state, false));
  const auto found =
      stress::ProgressFromJson({static_cast<const uint8_t*>(file->handle()), file->size_bytes()});
  if (!found) return Fail(found.error().Within(options.state));
  if (found->seed != options.seed) {
    return Fail(Code::kMismatch, "{} is of seed {}, not {}; give --seed {} or another file", options.state,
                found->seed, options.seed, found->seed);
  }
  if (found->first_batch != 0) {
    return Fail(Code::kMismatch, "{} is of a run that began at batch {}; give another file", options.state,
                found->first_batch);
  }
  return found;
}

std::string Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-"
                    : fmt::format("{:.4f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::vector<std::string> Row(const std::string& dimension, const std::string& value,
                             const stress::Tally& tally) {
  return {dimension,
          value,
          CountText(tally.elements),
          Share(tally.changed, tally.elements),
          CountText(tally.false_negatives),
          CountText(tally.wrong_certificates),
          Share(tally.excess, tally.elements),
          Share(tally.uncertain, tally.elements),
          CountText(tally.naive_false_negatives),
          CountText(tally.naive_fp64_false_negatives)};
}

void Report(Output& out, const stress::Progress& progress) {
  const stress::Tally& all = progress.totals.all;
  std::vector<std::vector<std::string>> rows = {{"by", "", "element-steps", "changed", "missed", "wrong old",
                                                 "excess", "uncertain", "naive missed", "naive FP64 missed"}};
  for (const auto& [dimension, values] : progress.totals.by) {
    if (dimension == "class" || dimension == "power" || dimension == "mode") continue;
    for (const auto& [value, tally] : values) rows.push_back(Row(dimension, value, tally));
  }
  rows.push_back(Row("all", "", all));
  out.Table(std::move(rows), "llrrrrrrrr");
  out.Facts({{"seed", fmt::format("{}", progress.seed)},
             {"batches", fmt::format("{} to {}", progress.first_batch, progress.next_batch)},
             {"seconds", fmt::format("{:.1f} ({:.3g} element-steps a second)", progress.seconds,
                                     static_cast<double>(all.elements) / std::max(progress.seconds, 1e-9))},
             {"false negatives", CountText(all.false_negatives)},
             {"wrong certificates", CountText(all.wrong_certificates)},
             {"worst error", fmt::format("{:.4f} of its band", all.worst_band_ratio)},
             {"declined", CountText(all.refused)}});
}

Result<ExitCode> Verdict(Output& out, const stress::Progress& progress) {
  if (progress.totals.all.failures() == 0) return kOk;
  std::string text = "detection failed";
  if (const auto& failure = progress.totals.first_failure) {
    text = fmt::format("{}, the first of {}:", failure->what, CountText(progress.totals.all.failures()));
    for (const auto& [name, value] : failure->facts) text += fmt::format(" {}={};", name, value);
    text += fmt::format(" run it again with --seed {} --batch {}", progress.seed, failure->batch);
  }
  out.Warning(CodeName(Code::kDetectorFault), text);
  return kDiffers;
}

Result<ExitCode> Run(Session& session, const Options& options) {
  Output& out = session.out;
  const StopSignals signals;
  DELTAWIRE_ASSIGN(stress::Progress progress, Begin(options));
  stress::RunOptions run;
  run.end_batch = options.batch ? *options.batch + 1 : stress::BatchesFor(*CountFrom(options.count));
  run.parallel = Parallel(*options.threads);
  run.stop = signals.token();
  const auto complete = [&] { return progress.next_batch >= run.end_batch; };
  // Before the work, so that a path that can't be written is known now and not in ten minutes.
  DELTAWIRE_TRY(Save(options, progress, complete()));
  const auto bar = out.Progress("stressing detection");
  using Time = std::chrono::steady_clock;
  auto saved = Time::now();
  run.checkpoint = [&](const stress::Progress& now) -> Status {
    if (bar) bar(now.next_batch - now.first_batch, run.end_batch - now.first_batch);
    if (!complete() && !run.stop.stop_requested() && Time::now() - saved < std::chrono::seconds(5)) return {};
    saved = Time::now();
    return Save(options, now, complete());
  };
  DELTAWIRE_TRY(stress::Run(run, stress::Subject{}, SystemClock(), progress));
  Report(out, progress);
  return Verdict(out, progress);
}

void AddDetect(CLI::App& stress, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = stress.add_subcommand(
      "detect",
      "Undo emulated optimizer steps and compare with the truth: weights next to rounding boundaries, "
      "natural\n"
      "training, wild bit patterns; the operation orders of nine kernels and of SGD, with and without fused\n"
      "multiply-adds and flushing; BF16 moments; one step and many.");
  command->footer(
      "Examples:\n"
      "  deltawire stress detect --count 1e8 --seed 7 --json found.json\n"
      "  deltawire stress detect --count 1e10 --state state.json     killed? The same line goes on\n"
      "  deltawire stress detect --seed 7 --batch 4711               one batch again\n"
      "\n" +
      std::string(ExitCodeTable()));
  command
      ->add_option("--count", options->count,
                   "element-steps, rounded up to whole batches of 65,536 (1e10 too)")
      ->check(CheckCount)
      ->capture_default_str();
  command->add_option("--seed", options->seed, "a batch follows from the seed and its number alone")
      ->capture_default_str();
  command->add_option("--json", options->json, "write the counts, by class, to this file");
  auto* state = command->add_option(
      "--state", options->state, "keep what was counted in this file every few seconds, and go on from it");
  command->add_option("--batch", options->batch, "run this batch alone")->excludes(state);
  options->threads = AddThreads(command);
  command->callback(
      [&session, options] { session.action = [&session, options] { return Run(session, *options); }; });
}

}  // namespace

void AddStress(CLI::App& app, Session& session) {
  CLI::App* stress = app.add_subcommand("stress", "Try to make deltawire wrong.");
  stress->footer(
      "Examples:\n"
      "  deltawire stress detect --count 1e8 --seed 7 --json found.json\n"
      "  deltawire stress detect --help\n"
      "\n" +
      std::string(ExitCodeTable()));
  stress->require_subcommand(1);
  AddDetect(*stress, session);
}

}  // namespace deltawire::cli
