// deltawire follow URL FOLDER: keeps a checkpoint on disk at the newest version of a run.
#include "pubsub/follow.h"

#include <filesystem>

#include "cli/command.h"
#include "cli/patch_options.h"
#include "cli/stop_signals.h"
#include "pubsub/folder_target.h"
#include "pubsub/materialize.h"
#include "store/open.h"
#include "sync/follow.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string url;
  std::string folder;
  bool once = false;
  std::optional<uint64_t> number;
  std::optional<double> timeout;
  double poll = 1.0;
  uint64_t verify_every = 0;
  std::shared_ptr<int> threads;
};

class WarningLog final : public LogSink {
 public:
  explicit WarningLog(Output& out) : out_(out) {}
  void Log(LogLevel level, std::string_view message) override {
    if (level == LogLevel::kWarning) out_.Warning("warning", message);
    if (level == LogLevel::kError) out_.Warning("error", message);
  }

 private:
  Output& out_;
};

int64_t Millis(double seconds) { return static_cast<int64_t>(seconds * 1000); }

void Event(Output& out, std::string_view event, const pubsub::Version& version, std::string_view text) {
  if (!out.json) {
    out.Line(text);
    return;
  }
  Json json = {{"event", event}};
  json.update(VersionJson(version));
  out.JsonLine(json);
}

void Committed(Output& out, const pubsub::Version& version) {
  double pause = 0;
  for (const auto& [stage, seconds] : version.stages) {
    if (stage == "commit") pause = seconds;
  }
  Event(out, "committed", version,
        fmt::format("version {}  {} changed ({})  {}  {:.2f} s, {:.1f} ms of it writing  {}", version.number,
                    CountText(version.changed), ShareText(version.changed, version.total),
                    BytesText(version.bytes), version.seconds, pause * 1e3, version.digest.Hex()));
}

bool NeedsCheckpoint(const std::string& folder) {
  std::error_code error;
  return !fs::exists(folder, error) || (fs::is_directory(folder, error) && fs::is_empty(folder, error));
}

// Fills the folder from an anchor, once the run has a version.
Status Materialize(Session& session, const Options& options, sync::Catalog& catalog,
                   const std::stop_token& stop) {
  const bool waits = options.timeout || !(options.once || options.number);
  if (waits) {
    constexpr double kForEver = 1e9;
    const sync::WaitOptions wait{Millis(options.timeout.value_or(kForEver)), Millis(options.poll)};
    DELTAWIRE_TRY(sync::WaitForNewer(catalog, std::nullopt, wait, SystemClock(), stop));
  }
  DELTAWIRE_TRY(catalog.Run());  // says so when there is no run
  DELTAWIRE_ASSIGN(
      const uint64_t number,
      pubsub::MaterializeAnchor(catalog, options.folder,
                                {options.number, session.out.Progress("copying the checkpoint")}));
  if (session.out.json) {
    session.out.JsonLine({{"event", "materialized"}, {"number", number}, {"folder", options.folder}});
  } else {
    session.out.Line(fmt::format("version {}  copied from its anchor", number));
  }
  return {};
}

Result<ExitCode> Run(Session& session, const Options& options) {
  Output& out = session.out;
  const StopSignals signals;
  DELTAWIRE_ASSIGN(const auto store, OpenStore(options.url, false));
  if (NeedsCheckpoint(options.folder)) {
    sync::Catalog catalog(store);
    const Status made = Materialize(session, options, catalog, signals.token());
    if (!made && made.error().code() == Code::kCancelled) return kOk;
    DELTAWIRE_TRY(made);
  }
  WarningLog log(out);
  DELTAWIRE_ASSIGN(const auto target, pubsub::FolderTarget::Open(options.folder));
  if (target->recovered()) out.Warning("recovered", "a commit that was interrupted has been completed");
  pubsub::SubscriberOptions subscriber_options;
  subscriber_options.store = store;
  subscriber_options.observer = target.get();
  subscriber_options.parallel = Parallel(*options.threads);
  subscriber_options.log = &log;
  DELTAWIRE_ASSIGN(const auto subscriber,
                   pubsub::Subscriber::Open(std::move(subscriber_options), target->Targets()));

  pubsub::FollowOptions follow;
  follow.number = options.number;
  follow.once = options.once;
  if (options.timeout) follow.timeout_ms = Millis(*options.timeout);
  follow.poll_ms = std::max<int64_t>(1, Millis(options.poll));
  follow.verify_every = options.verify_every;
  follow.committed = [&](const pubsub::Version& version) { Committed(out, version); };
  follow.current = [&](const pubsub::Version& version) {
    Event(out, "current", version, fmt::format("version {}  is here already", version.number));
  };
  follow.verified = [&](const pubsub::Version& version) {
    Event(out, "verified", version,
          fmt::format("version {}  every bit read again and right", version.number));
  };
  follow.refused = [&](uint64_t number, const Error& error) {
    out.Warning(CodeName(error.code()), fmt::format("version {} refused: {}", number, error.message()));
    if (!out.json) return;
    out.JsonLine({{"event", "refused"},
                  {"number", number},
                  {"error", {{"code", CodeName(error.code())}, {"message", error.message()}}}});
  };
  DELTAWIRE_ASSIGN(const auto version, pubsub::Follow(*subscriber, follow, signals.token()));
  if (!version && !signals.token().stop_requested()) {
    return Fail(Code::kNotFound, "{} has no version after {} s", options.url, options.timeout.value_or(0));
  }
  return kOk;
}

}  // namespace

void AddFollow(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, session, "follow", "Keep a checkpoint on disk at the newest version of a run.",
                 "  deltawire follow /runs/7 engine/ckpt            until Ctrl-C, between two commits\n"
                 "  deltawire follow /runs/7 engine/ckpt --once     catch up and end\n"
                 "  deltawire follow /runs/7 ckpt12 --version 12    a new folder, at version 12\n",
                 [&session, options] { return Run(session, *options); });
  command->add_option("URL", options->url, "folder or URL of the run")->required();
  command
      ->add_option(
          "FOLDER", options->folder,
          "checkpoint to keep current; made from the run's newest anchor when it is missing or empty")
      ->required();
  auto* once = command->add_flag("--once", options->once, "go to the newest version and end");
  command->add_option("--version", options->number, "go to this version and end")->excludes(once);
  command->add_option("--timeout", options->timeout, "end when no newer version came for so many seconds")
      ->check(CLI::Range(0.0, 1e9));
  command->add_option("--poll", options->poll, "seconds between two looks at the run")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  command
      ->add_option("--verify-every", options->verify_every,
                   "read every bit again after each Nth commit; 0: never")
      ->capture_default_str();
  options->threads = AddThreads(command);
}

}  // namespace deltawire::cli
