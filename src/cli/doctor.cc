// deltawire doctor: what this machine and a run's store offer, and whether detection is right in the user's
// own loop.
#include "base/rng.h"
#include "cli/audit.h"
#include "cli/command.h"
#include "cli/environment.h"
#include "cli/patch_options.h"
#include "store/open.h"
#include "store/probe.h"

namespace deltawire::cli {
namespace {

struct Options {
  std::string url;
  bool probe = false;
  uint64_t audit_steps = 0;
  std::string report;
};

void Print(Output& out, Json& json, const Fact& fact) {
  if (out.json) {
    json[fact.name] = {{"present", fact.present}};
    if (fact.present) json[fact.name].update(fact.json);
    if (!fact.present) json[fact.name]["reason"] = fact.detail;
    return;
  }
  out.Facts({{fmt::format("{:<10}", fact.name), fact.present ? fact.detail : "none: " + fact.detail}});
}

// The newest version's detectors, with the publisher's reasons.
Status PrintDetectors(Output& out, Json& json, std::shared_ptr<Store> store) {
  sync::Catalog catalog(std::move(store));
  const auto newest = catalog.Newest();
  if (!newest && newest.error().code() == Code::kNotFound) {
    json["versions"] = 0;
    if (!out.json) out.Facts({{"run       ", "no version yet"}});
    return {};
  }
  if (!newest) return Fail(newest.error());
  DELTAWIRE_ASSIGN(const auto record, catalog.Load(*newest));
  json["run"] = record.manifest.run;
  json["newest"] = *newest;
  json["detectors"] = Json::array();
  if (!out.json)
    out.Facts({{"run       ", fmt::format("{}, newest version {}", record.manifest.run, *newest)}});
  for (const auto& use : record.manifest.detectors) {
    json["detectors"].push_back({{"detector", use.detector},
                                 {"tensors", use.tensors},
                                 {"elements", use.elements},
                                 {"reason", use.reason}});
    if (out.json) continue;
    out.Facts(
        {{"detector  ", fmt::format("{} for {} tensors, {} elements{}", use.detector, use.tensors,
                                    CountText(use.elements), use.reason.empty() ? "" : ": " + use.reason)}});
  }
  return {};
}

// False when the store does not do what it says.
bool PrintProbe(Output& out, Json& json, Store& store) {
  bool good = true;
  json["probe"] = Json::array();
  for (const auto& step : ProbeStore(store, SystemRng())) {
    Json result = {{"step", step.what}, {"ok", step.result.has_value()}};
    if (!step.result) {
      good = false;
      result["error"] = {{"code", CodeName(step.result.error().code())},
                         {"message", step.result.error().message()}};
      out.Warning(CodeName(step.result.error().code()), step.result.error().message());
    }
    if (!out.json)
      out.Facts({{"probe     ", fmt::format("{}: {}", step.what, step.result ? "ok" : "failed")}});
    json["probe"].push_back(std::move(result));
  }
  return good;
}

Result<ExitCode> Run(Session& session, const Options& options) {
  Output& out = session.out;
  if (options.audit_steps > 0) {
    if (session.trailing.empty()) {
      return Fail(Code::kInvalidArgument,
                  "--audit needs the training command after \"--\": doctor --audit 20 -- python train.py");
    }
    return RunAudit(session, options.audit_steps, options.report);
  }
  if (!session.trailing.empty()) {
    return Fail(Code::kInvalidArgument, "a command after \"--\" is for --audit STEPS only");
  }
  Json json = {{"version", DELTAWIRE_VERSION}};
  if (!out.json) out.Facts({{"deltawire ", DELTAWIRE_VERSION}});
  for (const auto& fact : {ProcessorFact(), MemoryFact(), CudaCompilerFact(), GpuFact(), PythonFact()}) {
    Print(out, json, fact);
  }
  bool good = true;
  if (!options.url.empty()) {
    DELTAWIRE_ASSIGN(const auto store, OpenStore(options.url, false));
    const StoreCapabilities can = store->capabilities();
    json["store"] = {{"url", options.url},
                     {"describe", store->Describe()},
                     {"create_if_absent", can.create_if_absent},
                     {"modification_times", can.modification_times}};
    if (!out.json) {
      out.Facts({{"store     ",
                  fmt::format("{}: create-if-absent {}, modification times {}", store->Describe(),
                              can.create_if_absent ? "yes" : "no", can.modification_times ? "yes" : "no")}});
    }
    DELTAWIRE_TRY(PrintDetectors(out, json["store"], store));
    if (options.probe) good = PrintProbe(out, json["store"], *store);
  }
  if (out.json) out.JsonLine(json);
  return good ? kOk : kDiffers;
}

}  // namespace

void AddDoctor(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      app, session, "doctor", "Report what this machine and a run's store offer; audit detection.",
      "  deltawire doctor\n"
      "  deltawire doctor /runs/7 --probe               also writes and deletes a small object there\n"
      "  deltawire doctor --audit 20 -- python train.py compare 20 of your own steps with the truth\n"
      "Exit codes of an audit: 0 sound; 1 a change was missed, or old bits were wrong;\n"
      "3 nothing to judge by: the program can't be started, made no Publisher, or nothing was compared;\n"
      "4 the program failed.\n",
      [&session, options] { return Run(session, *options); });
  auto* url = command->add_option("URL", options->url, "folder or URL of a run");
  command->add_flag("--probe", options->probe, "try the store out with a small object under a random name")
      ->needs(url);
  auto* audit = command
                    ->add_option("--audit", options->audit_steps,
                                 "run the command after \"--\" and audit so many of its optimizer steps")
                    ->check(CLI::PositiveNumber);
  command->add_option("--report", options->report, "where the audit's full report stays")->needs(audit);
}

}  // namespace deltawire::cli
