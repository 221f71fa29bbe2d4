// deltawire diff OLD NEW -o PATCH
#include "cli/command.h"
#include "cli/patch_options.h"
#include "pubsub/coding_name.h"

namespace deltawire::cli {
namespace {

struct Options {
  std::string old_path;
  std::string new_path;
  NewPatch out;
  std::string coding = "step";
};

Result<ExitCode> Run(Session& session, const Options& options) {
  DELTAWIRE_TRY(options.out.Check());
  auto patch = MakePatchOptions(session.out, *options.out.threads, "comparing");
  DELTAWIRE_ASSIGN(patch.coding, pubsub::CodingFromName(options.coding));
  DELTAWIRE_ASSIGN(const auto version,
                   pubsub::DiffCheckpoints(options.old_path, options.new_path, options.out.path, patch));
  if (session.out.json) {
    Json json = {{"old", options.old_path},
                 {"new", options.new_path},
                 {"patch", options.out.path},
                 {"coding", options.coding}};
    json.update(VersionJson(version));
    json["changed_share"] = RatioJson(version.changed, version.total);
    json["bytes_per_changed"] = RatioJson(version.bytes, version.changed);
    session.out.JsonLine(json);
    return kOk;
  }
  session.out.Facts({{"changed", ChangedText(version.changed, version.total)},
                     {"patch", options.out.path},
                     {"bytes", PatchBytesText(version)},
                     {"digest", version.digest.Hex()},
                     {"seconds", fmt::format("{:.2f}", version.seconds)}});
  return kOk;
}

}  // namespace

void AddDiff(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, session, "diff", "Write the patch that turns checkpoint OLD into checkpoint NEW.",
                 "  deltawire diff step100/ step101/ -o 101.safetensors\n"
                 "  deltawire diff old.safetensors new.safetensors -o p.safetensors --json\n",
                 [&session, options] { return Run(session, *options); });
  command->add_option("OLD", options->old_path, "safetensors file or Hugging Face folder")->required();
  command->add_option("NEW", options->new_path, "the same tensors with new bits")->required();
  command
      ->add_option(
          "--coding", options->coding,
          "class (smallest; reads the whole base), step, absolute (applies without reading old bits), or "
          "open (for other tools)")
      ->check(CLI::IsMember({"class", "step", "absolute", "open"}))
      ->capture_default_str();
  options->out.AddTo(command);
}

}  // namespace deltawire::cli
