// deltawire fold BASE PATCH... -o OUT
#include <filesystem>

#include "cli/command.h"
#include "cli/patch_options.h"
#include "pubsub/coding_name.h"

namespace deltawire::cli {
namespace {

struct Options {
  std::string base;
  std::vector<std::string> patches;
  std::string out;
  std::string coding = "absolute";
  bool force = false;
  std::shared_ptr<int> threads;
};

Result<ExitCode> Run(Session& session, const Options& options) {
  std::error_code error;
  if (!options.force && std::filesystem::exists(options.out, error)) {
    return Fail(Code::kExists, "{} exists already; remove it, choose another name, or give --force",
                options.out);
  }
  auto patch = MakePatchOptions(session.out, *options.threads, "folding");
  DELTAWIRE_ASSIGN(patch.coding, pubsub::CodingFromName(options.coding));
  DELTAWIRE_ASSIGN(const auto version,
                   pubsub::FoldPatches(options.base, options.patches, options.out, patch));
  if (session.out.json) {
    Json json = {{"base_path", options.base},
                 {"patches", options.patches},
                 {"output", options.out},
                 {"coding", options.coding}};
    json.update(VersionJson(version));
    session.out.JsonLine(json);
    return kOk;
  }
  session.out.Facts(
      {{"folded", fmt::format("{} patches", options.patches.size())},
       {"changed", ChangedText(version.changed, version.total)},
       {"patch", options.out},
       {"bytes", fmt::format("{} ({} a changed element)", CountText(version.bytes),
                             BytesPerChangeText(version.bytes, version.changed))},
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
  command->add_option("-o,--output", options->out, "the patch to write, a safetensors file")->required();
  command
      ->add_option("--coding", options->coding,
                   "absolute (applies to the base and to every result on the way), class (smallest) or step")
      ->check(CLI::IsMember({"absolute", "class", "step"}))
      ->capture_default_str();
  command->add_flag("--force", options->force, "replace an existing output file");
  options->threads = AddThreads(command);
}

}  // namespace deltawire::cli
