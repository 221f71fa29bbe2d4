// deltawire fold BASE PATCH... -o OUT
#include "cli/command.h"
#include "cli/patch_options.h"
#include "pubsub/coding_name.h"

namespace deltawire::cli {
namespace {

struct Options {
  std::string base;
  std::vector<std::string> patches;
  NewPatch out;
  std::string coding = "absolute";
};

Result<ExitCode> Run(Session& session, const Options& options) {
  DELTAWIRE_TRY(options.out.Check());
  auto patch = MakePatchOptions(session.out, *options.out.threads, "folding");
  DELTAWIRE_ASSIGN(patch.coding, pubsub::CodingFromName(options.coding));
  DELTAWIRE_ASSIGN(const auto version,
                   pubsub::FoldPatches(options.base, options.patches, options.out.path, patch));
  if (session.out.json) {
    Json json = {{"base_path", options.base},
                 {"patches", options.patches},
                 {"output", options.out.path},
                 {"coding", options.coding}};
    json.update(VersionJson(version));
    session.out.JsonLine(json);
    return kOk;
  }
  session.out.Facts(
      {{"folded", fmt::format("{} patches", options.patches.size())},
       {"changed", ChangedText(version.changed, version.total)},
       {"patch", options.out.path},
       {"bytes", PatchBytesText(version)},
       {"applies to", options.coding == "absolute" ? "the base and every result on the way" : "the base"},
       {"digest", version.digest.Hex() + ", proved"},
       {"seconds", fmt::format("{:.2f}", version.seconds)}});
  return kOk;
}

}  // namespace

void AddFold(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, session, "fold", "Write one patch that does what several in a row do to BASE.",
                 "  deltawire fold step100/ 101.safetensors 102.safetensors -o 100-102.safetensors\n"
                 "  deltawire fold step100/ 1*.safetensors -o p.safetensors --coding class --json\n",
                 [&session, options] { return Run(session, *options); });
  command->add_option("BASE", options->base, "the checkpoint that the first patch was made from")->required();
  command->add_option("PATCH", options->patches, "patches, each made from the result of the one before")
      ->required();
  command
      ->add_option("--coding", options->coding,
                   "absolute (applies to the base and to every result on the way), class (smallest) or step")
      ->check(CLI::IsMember({"absolute", "class", "step"}))
      ->capture_default_str();
  options->out.AddTo(command);
}

}  // namespace deltawire::cli
