// deltawire diff OLD NEW -o PATCH
#include <filesystem>

#include "cli/command.h"
#include "cli/patch_options.h"
#include "pubsub/coding_name.h"

namespace deltawire::cli {
namespace {

struct Options {
  std::string old_path;
  std::string new_path;
  std::string out;
  std::string coding = "step";
  bool force = false;
  std::shared_ptr<int> threads;
};

Result<ExitCode> Run(Session& session, const Options& options) {
  std::error_code error;
  if (!options.force && std::filesystem::exists(options.out, error)) {
    return Fail(Code::kExists, "{} exists already; remove it, choose another name, or give --force",
                options.out);
  }
  auto patch = MakePatchOptions(session.out, *options.threads, "comparing");
  DELTAWIRE_ASSIGN(patch.coding, pubsub::CodingFromName(options.coding));
  DELTAWIRE_ASSIGN(const auto version,
                   pubsub::DiffCheckpoints(options.old_path, options.new_path, options.out, patch));
  if (session.out.json) {
    Json json = {{"old", options.old_path},
                 {"new", options.new_path},
                 {"patch", options.out},
                 {"coding", options.coding}};
    json.update(VersionJson(version));
    json["changed_share"] = RatioJson(version.changed, version.total);
    json["bytes_per_changed"] = RatioJson(version.bytes, version.changed);
    session.out.JsonLine(json);
    return kOk;
  }
  session.out.Facts({{"changed", ChangedText(version.changed, version.total)},
                     {"patch", options.out},
                     {"bytes", fmt::format("{} ({} a changed element)", CountText(version.bytes),
                                           BytesPerChangeText(version.bytes, version.changed))},
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
  command->add_option("-o,--output", options->out, "the patch to write, a safetensors file")->required();
  command
      ->add_option(
          "--coding", options->coding,
          "class (smallest; reads the whole base), step, absolute (applies without reading old bits), or "
          "open (for other tools)")
      ->check(CLI::IsMember({"class", "step", "absolute", "open"}))
      ->capture_default_str();
  command->add_flag("--force", options->force, "replace an existing output file");
  options->threads = AddThreads(command);
}

}  // namespace deltawire::cli
