#include "cli/audit.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/child.h"
#include "cli/patch_options.h"
#include "format/json.h"
#include "tensor/memory.h"

namespace deltawire::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxReportBytes = 64u << 20;

// A file name that nobody else has; removed with its owner.
class TemporaryFile {
 public:
  static Result<TemporaryFile> Create() {
    std::error_code error;
    std::string path = (fs::temp_directory_path(error) / "deltawire-audit-XXXXXX").string();
    const int file = mkstemp(path.data());
    if (file < 0) return Fail(Code::kIo, "can't create {}: {}", path, std::strerror(errno));
    close(file);
    return TemporaryFile(std::move(path));
  }
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  TemporaryFile(TemporaryFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Findings {
  uint64_t steps = 0;
  uint64_t compared = 0;
  uint64_t changed = 0;
  uint64_t missed = 0;
  uint64_t excess = 0;
  uint64_t uncertain = 0;
  uint64_t wrong_old = 0;  // certified old bits that were not the true ones
  uint64_t tensors = 0;    // whose steps are undone, in the sample
  uint64_t unaudited = 0;  // the others
  Json report;
};

Result<Findings> ReadReport(const std::string& path) {
  std::error_code missing;
  if (!fs::exists(path, missing) || fs::file_size(path, missing) == 0) {
    return Fail(Code::kNotFound,
                "the program wrote no audit report: it must make a deltawire.Publisher and run at least the "
                "audited steps");
  }
  DELTAWIRE_ASSIGN(const auto file, MapFile(path, false));
  const ByteSpan text(static_cast<const uint8_t*>(file->handle()), file->size_bytes());
  DELTAWIRE_ASSIGN(const auto json, format::ParseJson(text, {.max_bytes = kMaxReportBytes}, "audit report"));
  DELTAWIRE_ASSIGN(const auto object, format::JsonObject::From(json, "report"));
  Findings found;
  DELTAWIRE_ASSIGN(found.steps, object.Unsigned("steps"));
  DELTAWIRE_ASSIGN(found.compared, object.Unsigned("compared"));
  DELTAWIRE_ASSIGN(found.changed, object.Unsigned("changed"));
  DELTAWIRE_ASSIGN(found.missed, object.Unsigned("missed"));
  DELTAWIRE_ASSIGN(found.excess, object.Unsigned("excess"));
  DELTAWIRE_ASSIGN(found.uncertain, object.Unsigned("uncertain"));
  DELTAWIRE_ASSIGN(found.wrong_old, object.Unsigned("wrong_old"));
  DELTAWIRE_ASSIGN(found.tensors, object.Unsigned("tensors"));
  DELTAWIRE_ASSIGN(found.unaudited, object.Unsigned("unaudited"));
  found.report = Json(json);
  return found;
}

}  // namespace

Result<ExitCode> RunAudit(Session& session, uint64_t steps, const std::string& report_path) {
  std::optional<TemporaryFile> temporary;
  std::string report = report_path;
  if (report.empty()) {
    DELTAWIRE_ASSIGN(auto created, TemporaryFile::Create());
    report = temporary.emplace(std::move(created)).path();
  } else if (unlink(report.c_str()) != 0 && errno != ENOENT) {  // what an earlier audit found must not count
    return Fail(Code::kIo, "can't remove the old report {}: {}", report, std::strerror(errno));
  }
  DELTAWIRE_ASSIGN(const int exit_code,
                   RunForeground(session.trailing, {{"DELTAWIRE_AUDIT_STEPS", fmt::format("{}", steps)},
                                                    {"DELTAWIRE_AUDIT_REPORT", report}}));
  const auto found = ReadReport(report);
  if (!found && exit_code != 0)
    return Fail(Code::kIo, "the program ended with {}, and left no audit to judge by: {}", exit_code,
                found.error().message());
  if (!found) return Fail(found.error());
  const bool wrong = found->missed + found->wrong_old > 0;
  const bool judged = found->compared > 0 || (found->tensors == 0 && found->steps > 0);
  const bool sound = judged && !wrong;
  if (session.out.json) {
    Json json = {{"ok", sound && exit_code == 0}, {"command_exit", exit_code}};
    json.update(found->report);
    session.out.JsonLine(json);
  } else {
    const std::string verdict = sound   ? session.out.Good("sound")
                                : wrong ? session.out.Bad("NOT SOUND")
                                        : session.out.Bad("nothing to judge by");
    session.out.Line(fmt::format("audit of {} steps: {}", found->steps, verdict));
    session.out.Facts(
        {{"compared", CountText(found->compared)},
         {"changed", ChangedText(found->changed, found->compared)},
         {"missed", CountText(found->missed)},
         {"wrong old", CountText(found->wrong_old)},
         {"excess", CountText(found->excess)},
         {"uncertain", CountText(found->uncertain)},
         {"tensors", fmt::format("{} undone and audited; {} watched by comparing bits, or beyond "
                                 "the sample",
                                 found->tensors, found->unaudited)}});
  }
  if (!judged) session.out.Warning("nothing_compared", "the report says that no element was compared");
  if (wrong) {
    session.out.Warning("detector_fault",
                        fmt::format("{} changed elements were missed, {} had other old bits than certified; "
                                    "publish with detector=\"snapshot\" and report this",
                                    found->missed, found->wrong_old));
  }
  if (exit_code != 0)
    session.out.Warning("command_failed", fmt::format("the program ended with {}", exit_code));
  if (wrong) return kDiffers;
  if (exit_code != 0) return kSystem;
  return judged ? kOk : kBadInput;
}

}  // namespace deltawire::cli
