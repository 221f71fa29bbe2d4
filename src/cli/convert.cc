// deltawire convert INPUT --base BASE --to FORMAT -o OUT
#include "pubsub/convert.h"

#include "cli/command.h"
#include "cli/patch_options.h"
#include "pubsub/coding_name.h"

namespace deltawire::cli {
namespace {

using interchange::Checksum;
using interchange::SlimeEncoding;
using pubsub::UpdateFormat;

struct Options {
  std::string input;
  std::string base;
  std::string out;
  std::string from;
  std::string to;
  std::string coding = "step";
  std::string encoding = "xor";
  std::string checksum = "xxh3-128";
  std::optional<uint64_t> version;
  std::optional<uint64_t> base_version;
  std::shared_ptr<int> threads;
};

// `open` is a coding of patches; as a format it is what people look for.
constexpr std::string_view kOpen = "open";

UpdateFormat FormatOf(const std::string& name) {
  for (const auto format : {UpdateFormat::kCheckpoint, UpdateFormat::kSlime, UpdateFormat::kTrl}) {
    if (pubsub::UpdateFormatName(format) == name) return format;
  }
  return UpdateFormat::kPatch;
}

Result<ExitCode> Run(Session& session, const Options& options) {
  pubsub::ConvertOptions convert;
  convert.patch = MakePatchOptions(session.out, *options.threads, "converting");
  DELTAWIRE_ASSIGN(convert.patch.coding,
                   pubsub::CodingFromName(options.to == kOpen ? std::string(kOpen) : options.coding));
  if (!options.from.empty()) convert.from = FormatOf(options.from);
  convert.to = FormatOf(options.to);
  convert.slime_version = options.version;
  convert.slime_base_version = options.base_version;
  convert.slime_encoding = options.encoding == "xor" ? SlimeEncoding::kXor : SlimeEncoding::kOverwrite;
  convert.slime_checksum = *interchange::ChecksumFromName(options.checksum);
  DELTAWIRE_ASSIGN(const auto converted, pubsub::Convert(options.input, options.base, options.out, convert));
  const pubsub::Version& version = converted.version;
  const std::string_view from = pubsub::UpdateFormatName(converted.from);
  if (session.out.json) {
    Json json = {{"input", options.input}, {"base_path", options.base},
                 {"output", options.out},  {"from", from},
                 {"to", options.to},       {"base_digest", converted.before.Hex()}};
    json.update(VersionJson(version));
    session.out.JsonLine(json);
    return kOk;
  }
  std::vector<std::pair<std::string, std::string>> facts = {
      {"changed", ChangedText(version.changed, version.total)},
      {"from", std::string(from)},
      {"output", fmt::format("{} ({}, {} bytes)", options.out, options.to, CountText(version.bytes))},
      {"base", converted.before.Hex()},
      {"digest", version.digest.Hex()},
      {"seconds", fmt::format("{:.2f}", version.seconds)}};
  for (const std::string& note : version.notes) facts.emplace_back("note", note);
  session.out.Facts(facts);
  return kOk;
}

}  // namespace

void AddConvert(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      app, session, "convert",
      "Turn an update of one format into another; every checksum it carries is checked on BASE.",
      "  deltawire convert deltas/weight_v000007 --base step6/ --to patch -o 7.safetensors\n"
      "  deltawire convert deltas/weight_v000007 --base step6/ --to checkpoint -o step7/\n"
      "  deltawire convert 7.safetensors --base step6/ --to slime -o deltas/weight_v000007\n"
      "  deltawire convert trl/deltas/step_000007.safetensors --base step6/ --to checkpoint -o step7/\n"
      "  deltawire convert 7.safetensors --base step6/ --to open -o 7-open.safetensors --json\n",
      [&session, options] { return Run(session, *options); });
  command
      ->add_option(
          "INPUT", options->input,
          "a patch of deltawire's, a version's folder of slime or miles, a TRL patch, or a checkpoint")
      ->required();
  command->add_option("--base", options->base, "the checkpoint that INPUT starts from")->required();
  command
      ->add_option("--to", options->to,
                   "what to write: a patch of deltawire's, the same in coding open, a checkpoint, "
                   "or slime's delta folder")
      ->required()
      ->check(CLI::IsMember({"patch", "open", "checkpoint", "slime"}));
  command->add_option("-o,--output", options->out, "the file or folder to write; must not exist")->required();
  command->add_option("--from", options->from, "what INPUT is; by default found out")
      ->check(CLI::IsMember({"patch", "open", "checkpoint", "slime", "trl"}));
  command->add_option("--coding", options->coding, "of a patch to write")
      ->check(CLI::IsMember({"class", "step", "absolute", "open"}))
      ->capture_default_str();
  command
      ->add_option("--encoding", options->encoding,
                   "of a slime delta to write: xor, or overwrite (tensors below 4 "
                   "GiB; may be applied twice)")
      ->check(CLI::IsMember({"xor", "overwrite"}))
      ->capture_default_str();
  command->add_option("--checksum", options->checksum, "of a slime delta to write")
      ->check(CLI::IsMember({"xxh3-128", "blake3", "adler32"}))
      ->capture_default_str();
  command->add_option("--version", options->version,
                      "of a slime delta to write; by default the number in OUT's name, weight_v000007");
  command->add_option("--base-version", options->base_version,
                      "which it starts from; by default the one before");
  options->threads = AddThreads(command);
}

}  // namespace deltawire::cli
