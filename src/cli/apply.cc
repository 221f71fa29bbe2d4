// deltawire apply BASE PATCH -o OUT
#include "cli/command.h"
#include "cli/patch_options.h"

namespace deltawire::cli {
namespace {

struct Options {
  std::string base;
  std::string patch;
  std::string out;
  std::shared_ptr<int> threads;
};

Result<ExitCode> Run(Session& session, const Options& options) {
  const auto patch = MakePatchOptions(session.out, *options.threads, "applying");
  DELTAWIRE_ASSIGN(const auto version, pubsub::ApplyPatch(options.base, options.patch, options.out, patch));
  if (session.out.json) {
    Json json = {{"base_path", options.base}, {"patch", options.patch}, {"output", options.out}};
    json.update(VersionJson(version));
    session.out.JsonLine(json);
    return kOk;
  }
  session.out.Facts({{"changed", ChangedText(version.changed, version.total)},
                     {"output", options.out},
                     {"digest", version.digest.Hex() + ", proved"},
                     {"seconds", fmt::format("{:.2f}", version.seconds)}});
  return kOk;
}

}  // namespace

void AddApply(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, session, "apply", "Write the checkpoint that a patch makes of BASE; BASE stays.",
                 "  deltawire apply step100/ 101.safetensors -o step101/\n"
                 "  deltawire apply old.safetensors p.safetensors -o new.safetensors --json\n",
                 [&session, options] { return Run(session, *options); });
  command->add_option("BASE", options->base, "the checkpoint that the patch was made from")->required();
  command->add_option("PATCH", options->patch, "what deltawire diff wrote")->required();
  command->add_option("-o,--output", options->out, "the checkpoint to write; must not exist")->required();
  options->threads = AddThreads(command);
}

}  // namespace deltawire::cli
