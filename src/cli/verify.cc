// deltawire verify PATH: a patch or another deltawire file, a checkpoint, or a whole run.
#include <fmt/ranges.h>

#include <filesystem>

#include "cli/command.h"
#include "cli/patch_options.h"
#include "format/byte_map.h"
#include "format/open_patch.h"
#include "pubsub/checkpoint.h"
#include "pubsub/identify.h"
#include "pubsub/verify_run.h"
#include "tensor/memory.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string path;
  std::string digest;
  std::string url;
  std::shared_ptr<int> threads;
};

// For what is checked, damage is an answer; for everything else it is bad input.
bool IsAnswer(Code code) {
  return code == Code::kCorrupt || code == Code::kMismatch || code == Code::kWrongBase ||
         code == Code::kWrongRun;
}

Result<ExitCode> Wrong(Session& session, const Error& error) {
  if (!IsAnswer(error.code())) return Fail(error);
  session.out.Error(error);
  return kDiffers;
}

void ReportGood(Session& session, const Json& json, const std::string& what,
                const std::vector<std::pair<std::string, std::string>>& facts) {
  if (session.out.json) {
    session.out.JsonLine(json);
    return;
  }
  session.out.Line(fmt::format("{}: {}", what, session.out.Good("verified")));
  session.out.Facts(facts);
}

Result<ExitCode> VerifyPatchFile(Session& session, const Options& options) {
  const auto patch = MakePatchOptions(session.out, *options.threads, "verifying");
  const auto version = pubsub::VerifyPatch(options.path, patch);
  if (!version) return Wrong(session, version.error());
  Json json = {{"ok", true}, {"kind", "patch"}, {"path", options.path}};
  json.update(VersionJson(*version));
  ReportGood(session, json, "patch",
             {{"checked", "container, content hash, inventory, block table, every block's hash and stream"},
              {"changed", ChangedText(version->changed, version->total)},
              {"makes", version->digest.Hex()}});
  return kOk;
}

// An update of a run needs the run's inventory.
Result<ExitCode> VerifyFile(Session& session, const Options& options, format::FileKind kind, ByteSpan bytes) {
  const auto map = format::MapBytes(bytes);
  if (!map) return Wrong(session, Error(map.error()).Within(options.path));
  const std::string name(format::FileKindName(kind));
  std::string checked = "grammar, limits and content hash";
  if (map->update) checked = "container and content hash; its blocks need the run: verify the run's URL";
  if (kind == format::FileKind::kOpen && !map->update) {
    checked = "grammar only: TRL's patches have no hashes, and positions need their base (deltawire convert)";
  }
  ReportGood(session, {{"ok", true}, {"kind", name}, {"path", options.path}, {"bytes", bytes.size()}}, name,
             {{"checked", checked}, {"bytes", CountText(bytes.size())}});
  return kOk;
}

Result<ExitCode> VerifyDigest(Session& session, const Options& options) {
  const auto expected = Digest::FromHex(options.digest);
  if (!options.digest.empty() && !expected) {
    return Fail(Code::kInvalidArgument, "--digest {} is not 32 hexadecimal digits", options.digest);
  }
  const auto patch = MakePatchOptions(session.out, *options.threads, "reading");
  const auto digest = pubsub::DigestCheckpoint(options.path, patch);
  if (!digest) return Wrong(session, digest.error());
  if (expected && *expected != *digest) {
    return Wrong(session, Error(Code::kMismatch, fmt::format("{} has state digest {}, expected {}",
                                                             options.path, digest->Hex(), expected->Hex())));
  }
  ReportGood(session,
             {{"ok", true},
              {"kind", "checkpoint"},
              {"path", options.path},
              {"digest", digest->Hex()},
              {"expected", expected ? Json(expected->Hex()) : Json(nullptr)}},
             "checkpoint",
             {{"checked", expected ? "headers, index and every bit"
                                   : "headers and index; give --digest or --url to "
                                     "check the bits"},
              {"digest", digest->Hex()}});
  return kOk;
}

Result<ExitCode> VerifyVersion(Session& session, const Options& options) {
  DELTAWIRE_ASSIGN(auto catalog, OpenCatalog(options.url));
  const auto found =
      pubsub::IdentifyCheckpoint(options.path, catalog, device::HostBackends(), Parallel(*options.threads));
  if (!found) return Wrong(session, found.error());
  Json json = {{"ok", !found->versions.empty()}, {"kind", "checkpoint"},
               {"path", options.path},           {"run", found->run},
               {"digest", found->digest.Hex()},  {"versions", found->versions},
               {"newest", found->newest},        {"unmanaged", found->unmanaged}};
  if (found->versions.empty()) {
    std::string nearest = "it is of no version";
    if (found->nearest) {
      constexpr size_t kNamed = 10;
      const auto& names = found->differing;
      nearest = fmt::format(
          "nearest is version {}, from which {} tensors differ: {}{}", *found->nearest, names.size(),
          fmt::join(names.begin(),
                    names.begin() + static_cast<std::ptrdiff_t>(std::min(kNamed, names.size())), ", "),
          names.size() > kNamed ? ", ..." : "");
      json["nearest"] = *found->nearest;
      json["differing"] = names;
    }
    if (session.out.json) session.out.JsonLine(json);
    session.out.Warning("mismatch", fmt::format("{} has state digest {}, which no version of run {} has; {}",
                                                options.path, found->digest.Hex(), found->run, nearest));
    return kDiffers;
  }
  ReportGood(session, json, "checkpoint",
             {{"version", fmt::format("{} (newest is {})", fmt::join(found->versions, " = "), found->newest)},
              {"run", found->run},
              {"digest", found->digest.Hex()},
              {"unmanaged", fmt::format("{} tensors", found->unmanaged.size())}});
  return kOk;
}

Result<ExitCode> VerifyWholeRun(Session& session, const Options& options) {
  DELTAWIRE_ASSIGN(auto catalog, OpenCatalog(options.path));
  const auto check =
      pubsub::VerifyRun(catalog, {Parallel(*options.threads), session.out.Progress("verifying")});
  if (!check) return Wrong(session, check.error());
  Json json = {{"ok", check->faults.empty()},
               {"kind", "run"},
               {"url", options.path},
               {"run", check->run},
               {"versions", check->versions},
               {"links", check->links},
               {"parts", check->parts},
               {"unread_parts", check->unread_parts},
               {"inventories", check->inventories},
               {"digest_tables", check->digest_tables},
               {"anchors", check->anchors},
               {"anchor_files", check->anchor_files},
               {"bytes", check->bytes},
               {"faults", Json::array()}};
  for (const auto& [object, error] : check->faults) {
    json["faults"].push_back(
        {{"object", object}, {"code", CodeName(error.code())}, {"message", error.message()}});
  }
  if (session.out.json) {
    session.out.JsonLine(json);
  } else {
    session.out.Line(fmt::format("run {}: {}", check->run,
                                 check->faults.empty()
                                     ? session.out.Good("verified")
                                     : session.out.Bad(fmt::format("{} faults", check->faults.size()))));
    session.out.Facts(
        {{"versions", fmt::format("{} manifests, {} links", check->versions, check->links)},
         {"parts",
          fmt::format("{} update files, every hash and stream{}", check->parts,
                      check->unread_parts == 0
                          ? ""
                          : fmt::format("; {} in codings unknown to this build, size and SHA-256 only",
                                        check->unread_parts))},
         {"digests", fmt::format("{} tables that add up to their version's", check->digest_tables)},
         {"anchors", fmt::format("{} with {} files", check->anchors, check->anchor_files)},
         {"read", BytesText(check->bytes)}});
  }
  for (const auto& [object, error] : check->faults) {
    session.out.Warning(CodeName(error.code()), fmt::format("{}: {}", object, error.message()));
  }
  return check->faults.empty() ? kOk : kDiffers;
}

Result<ExitCode> Run(Session& session, const Options& options) {
  std::error_code error;
  const bool folder = fs::is_directory(options.path, error);
  if (options.path.find("://") != std::string::npos ||
      (folder && fs::exists(fs::path(options.path) / "manifests"))) {
    return VerifyWholeRun(session, options);
  }
  if (!folder) {
    DELTAWIRE_ASSIGN(const auto file, MapFile(options.path, false));
    const ByteSpan bytes(static_cast<const uint8_t*>(file->handle()), file->size_bytes());
    const auto kind = format::KindOf(bytes);
    if (!kind) return Wrong(session, Error(kind.error()).Within(options.path));
    if (*kind == format::FileKind::kUpdate) {
      const auto update = format::ParseUpdate(bytes);
      if (!update) return Wrong(session, Error(update.error()).Within(options.path));
      if (update->inventory) return VerifyPatchFile(session, options);
    }
    if (*kind == format::FileKind::kOpen) {
      const auto patch = format::ParseOpenPatch(bytes);
      if (!patch) return Wrong(session, Error(patch.error()).Within(options.path));
      if (patch->header && patch->inventory) return VerifyPatchFile(session, options);
    }
    if (*kind != format::FileKind::kSafetensors) return VerifyFile(session, options, *kind, bytes);
  }
  return options.url.empty() ? VerifyDigest(session, options) : VerifyVersion(session, options);
}

}  // namespace

void AddVerify(CLI::App& app, Session& session) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, session, "verify", "Check a patch, a checkpoint, or everything that a run stores.",
                 "  deltawire verify p.safetensors               every hash and stream of a patch\n"
                 "  deltawire verify engine/ --url /runs/7       which version do these bits belong to?\n"
                 "  deltawire verify engine/ --digest 0123...    are they the expected ones?\n"
                 "  deltawire verify file:///runs/7              every manifest, link, part and anchor\n",
                 [&session, options] { return Run(session, *options); });
  command->add_option("PATH", options->path, "patch, checkpoint file or folder, run folder or URL")
      ->required();
  auto* digest =
      command->add_option("--digest", options->digest, "the state digest that a checkpoint must have");
  command->add_option("--url", options->url, "the run that a checkpoint should belong to")->excludes(digest);
  options->threads = AddThreads(command);
}

}  // namespace deltawire::cli
