#include "format/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/hash.h"
#include "base/object_name.h"
#include "format/json.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kManifestFormat = "deltawire.manifest";
constexpr std::string_view kAnchorFormat = "deltawire.anchor";

// The content hash is XXH3-128 of the text with the hash's own 32 digits replaced by zeros. Inside a JSON
// string quotes are escaped, so the pattern can only be a member.
std::string ContentPattern(std::string_view digits) { return fmt::format("\"content\":\"{}\"", digits); }
constexpr std::string_view kZeroDigits = "00000000000000000000000000000000";

std::string HashedText(Json root) {
  root["content"] = kZeroDigits;
  std::string text = CompactText(root);
  const size_t at = text.find(ContentPattern(kZeroDigits));
  const std::string zeroed = ContentPattern(kZeroDigits);
  text.replace(at, zeroed.size(), ContentPattern(ToHex(Xxh3_128(AsBytes(text)))));
  return text;
}

Status CheckContent(const JsonObject& object, ByteSpan bytes, std::string_view what) {
  DELTAWIRE_ASSIGN(const std::string content, object.String("content"));
  std::string text(AsText(bytes));
  const std::string pattern = ContentPattern(content);
  const size_t at = text.find(pattern);
  if (!IsLowerHex(content, 32) || at == std::string::npos ||
      text.find(pattern, at + 1) != std::string::npos) {
    return Fail(Code::kCorrupt,
                "{}.content: {}, expected 32 hexadecimal digits, written once and without spaces", what,
                Quoted(content));
  }
  text.replace(at, pattern.size(), ContentPattern(kZeroDigits));
  if (const std::string found = ToHex(Xxh3_128(AsBytes(text))); found != content) {
    return Fail(Code::kCorrupt, "{}: content hash is {}, the text says {}; it is damaged, fetch it again",
                what, found, content);
  }
  return {};
}

Json ToJson(const ObjectRef& ref) {
  return {{"name", ref.name}, {"bytes", ref.bytes}, {"sha256", ref.sha256}};
}

Json ToJson(const ManifestPart& part) {
  Json out = ToJson(part.object);
  out["coding"] = part.coding;
  out["table"] = {{"offset", part.table.offset}, {"bytes", part.table.bytes}, {"sha256", part.table.sha256}};
  return out;
}

Json ToJson(const BaseRef& base) {
  switch (base.kind) {
    case BaseRef::Kind::kVersion:
      return {{"kind", "version"},
              {"number", base.number},
              {"manifest", base.manifest},
              {"digest", base.digest.Hex()}};
    case BaseRef::Kind::kCheckpoint: return {{"kind", "checkpoint"}, {"digest", base.digest.Hex()}};
    case BaseRef::Kind::kNone: break;
  }
  return {{"kind", "none"}};
}

Result<ObjectRef> ObjectRefFrom(const JsonObject& object) {
  ObjectRef ref;
  DELTAWIRE_ASSIGN(ref.name, object.String("name"));
  DELTAWIRE_ASSIGN(ref.bytes, object.Unsigned("bytes"));
  DELTAWIRE_ASSIGN(ref.sha256, object.Sha256("sha256"));
  return ref;
}

Result<ManifestPart> PartFrom(const JsonObject& object) {
  ManifestPart part;
  DELTAWIRE_ASSIGN(part.object, ObjectRefFrom(object));
  DELTAWIRE_ASSIGN(part.coding, object.String("coding"));
  DELTAWIRE_ASSIGN(const JsonObject table, object.Object("table"));
  DELTAWIRE_ASSIGN(part.table.offset, table.Unsigned("offset"));
  DELTAWIRE_ASSIGN(part.table.bytes, table.Unsigned("bytes"));
  DELTAWIRE_ASSIGN(part.table.sha256, table.Sha256("sha256"));
  return part;
}

Result<BaseRef> BaseFrom(const JsonObject& object) {
  BaseRef base;
  DELTAWIRE_ASSIGN(const std::string kind, object.String("kind"));
  if (kind == "none") return base;
  if (kind != "version" && kind != "checkpoint") {
    return Fail(Code::kCorrupt, "{}: {}, expected \"version\", \"checkpoint\" or \"none\"",
                object.Path("kind"), Quoted(kind));
  }
  base.kind = kind == "version" ? BaseRef::Kind::kVersion : BaseRef::Kind::kCheckpoint;
  DELTAWIRE_ASSIGN(base.digest, object.StateDigest("digest"));
  if (base.kind == BaseRef::Kind::kCheckpoint) return base;
  DELTAWIRE_ASSIGN(base.number, object.Unsigned("number"));
  DELTAWIRE_ASSIGN(base.manifest, object.Sha256("manifest"));
  return base;
}

Result<DetectorUse> DetectorFrom(const JsonObject& object) {
  DetectorUse use;
  DELTAWIRE_ASSIGN(use.detector, object.String("detector"));
  DELTAWIRE_ASSIGN(use.reason, object.String("reason"));
  DELTAWIRE_ASSIGN(use.tensors, object.Unsigned("tensors"));
  DELTAWIRE_ASSIGN(use.elements, object.Unsigned("elements"));
  return use;
}

Result<ManifestCounts> CountsFrom(const JsonObject& object) {
  ManifestCounts counts;
  DELTAWIRE_ASSIGN(counts.changed, object.Unsigned("changed"));
  DELTAWIRE_ASSIGN(counts.sent, object.Unsigned("sent"));
  DELTAWIRE_ASSIGN(counts.uncertain, object.Unsigned("uncertain"));
  DELTAWIRE_ASSIGN(counts.dense, object.Unsigned("dense"));
  DELTAWIRE_ASSIGN(counts.total, object.Unsigned("total"));
  return counts;
}

// Every element of an array of objects.
template <class T>
Status ReadList(const JsonObject& object, std::string_view key, Result<T> (*read)(const JsonObject&),
                std::vector<T>& out) {
  DELTAWIRE_ASSIGN(const Json* array, object.Array(key));
  for (const Json& item : *array) {
    DELTAWIRE_ASSIGN(const JsonObject element,
                     JsonObject::From(item, fmt::format("{}[{}]", object.Path(key), out.size())));
    DELTAWIRE_ASSIGN(T value, read(element));
    out.push_back(std::move(value));
  }
  return {};
}

Status ReadTensorDigests(const JsonObject& object, std::optional<ObjectRef>& out) {
  if (!object.Has("tensor_digests")) return {};
  DELTAWIRE_ASSIGN(const JsonObject ref, object.Object("tensor_digests"));
  DELTAWIRE_ASSIGN(out, ObjectRefFrom(ref));
  return {};
}

// Parsing has the wording of the checks under the code of a parser.
Status AsCorrupt(Status status) {
  if (status) return {};
  return Fail(Code::kCorrupt, "{}", status.error().message());
}

Status CheckSha256(std::string_view sha256, std::string_view where) {
  if (IsLowerHex(sha256, 64)) return {};
  return Fail(Code::kInvalidArgument, "{}: {}, expected 64 lower-case hexadecimal digits", where,
              Quoted(sha256));
}

Status CheckRun(std::string_view run, std::string_view where) {
  if (IsRunName(run)) return {};
  return Fail(Code::kInvalidArgument, "{}: {}, expected 1 to 256 bytes of UTF-8 without control characters",
              where, Quoted(run));
}

Status CheckIdentifier(std::string_view text, std::string_view where) {
  if (IsIdentifier(text)) return {};
  return Fail(Code::kInvalidArgument, "{}: {}, expected 1 to 64 letters, digits, _ or -", where,
              Quoted(text));
}

Status CheckObjectRef(const ObjectRef& ref, std::string_view where) {
  if (!IsSafeObjectName(ref.name)) {
    return Fail(Code::kInvalidArgument, "{}.name: {} is not a plain relative object name", where,
                Quoted(ref.name));
  }
  return CheckSha256(ref.sha256, fmt::format("{}.sha256", where));
}

Status CheckTensorDigests(const std::optional<ObjectRef>& ref, std::string_view what) {
  if (!ref) return {};
  return CheckObjectRef(*ref, fmt::format("{}.tensor_digests", what));
}

Status CheckBase(const Manifest& manifest) {
  if (manifest.base.kind != BaseRef::Kind::kVersion) return {};
  if (manifest.base.number >= manifest.number) {
    return Fail(Code::kInvalidArgument, "manifest.base.number: {}, expected less than the version's own {}",
                manifest.base.number, manifest.number);
  }
  return CheckSha256(manifest.base.manifest, "manifest.base.manifest");
}

Status CheckParts(const std::vector<ManifestPart>& parts) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ManifestPart& part = parts[i];
    const std::string where = fmt::format("manifest.parts[{}]", i);
    DELTAWIRE_TRY(CheckObjectRef(part.object, where));
    DELTAWIRE_TRY(CheckIdentifier(part.coding, where + ".coding"));
    DELTAWIRE_TRY(CheckSha256(part.table.sha256, where + ".table.sha256"));
    const auto end = CheckedAdd(part.table.offset, part.table.bytes);
    if (!end || *end > part.object.bytes) {
      return Fail(Code::kInvalidArgument, "{}.table: bytes {}+{} lie outside an object of {}", where,
                  part.table.offset, part.table.bytes, part.object.bytes);
    }
    if (!names.insert(part.object.name).second) {
      return Fail(Code::kInvalidArgument, "{}.name: {} is listed twice", where, Quoted(part.object.name));
    }
  }
  return {};
}

Status CheckCounts(const ManifestCounts& counts) {
  const std::pair<std::string_view, uint64_t> kinds[] = {{"changed", counts.changed},
                                                         {"sent", counts.sent},
                                                         {"uncertain", counts.uncertain},
                                                         {"dense", counts.dense}};
  for (const auto& [kind, count] : kinds) {
    if (count > counts.total) {
      return Fail(Code::kInvalidArgument, "manifest.counts.{}: {} of {} elements", kind, count, counts.total);
    }
  }
  return {};
}

Status CheckDetectors(const std::vector<DetectorUse>& detectors) {
  for (size_t i = 0; i < detectors.size(); ++i) {
    if (detectors[i].detector.empty() || !IsUtf8(detectors[i].detector) || !IsUtf8(detectors[i].reason)) {
      return Fail(Code::kInvalidArgument,
                  "manifest.detectors[{}]: name and reason must be UTF-8, the name not empty", i);
    }
  }
  return {};
}

}  // namespace

Status CheckManifest(const Manifest& manifest) {
  DELTAWIRE_TRY(CheckRun(manifest.run, "manifest.run"));
  DELTAWIRE_TRY(CheckIdentifier(manifest.writer, "manifest.writer"));
  DELTAWIRE_TRY(CheckIdentifier(manifest.attempt, "manifest.attempt"));
  DELTAWIRE_TRY(CheckSha256(manifest.inventory, "manifest.inventory"));
  DELTAWIRE_TRY(CheckBase(manifest));
  if (manifest.alias_of && *manifest.alias_of >= manifest.number) {
    return Fail(Code::kInvalidArgument, "manifest.alias_of: {}, expected less than the version's own {}",
                *manifest.alias_of, manifest.number);
  }
  if (manifest.alias_of && !manifest.parts.empty()) {
    return Fail(Code::kInvalidArgument,
                "manifest.parts: {} parts, but alias_of says that the bits are those of {}",
                manifest.parts.size(), *manifest.alias_of);
  }
  DELTAWIRE_TRY(CheckParts(manifest.parts));
  DELTAWIRE_TRY(CheckTensorDigests(manifest.tensor_digests, "manifest"));
  DELTAWIRE_TRY(CheckCounts(manifest.counts));
  return CheckDetectors(manifest.detectors);
}

Status CheckAnchorManifest(const AnchorManifest& manifest) {
  DELTAWIRE_TRY(CheckRun(manifest.run, "anchor.run"));
  DELTAWIRE_TRY(CheckSha256(manifest.inventory, "anchor.inventory"));
  DELTAWIRE_TRY(CheckSha256(manifest.manifest, "anchor.manifest"));
  std::set<std::string_view> names;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const ObjectRef& file = manifest.files[i];
    const std::string where = fmt::format("anchor.files[{}]", i);
    DELTAWIRE_TRY(CheckObjectRef(file, where));
    if (file.name.find('/') != std::string::npos || !names.insert(file.name).second) {
      return Fail(Code::kInvalidArgument, "{}.name: {} is listed twice or lies outside the anchor's folder",
                  where, Quoted(file.name));
    }
  }
  return CheckTensorDigests(manifest.tensor_digests, "anchor");
}

std::string ManifestText(const Manifest& manifest) {
  Json root = {{"format", kManifestFormat},
               {"format_version", kManifestVersion},
               {"run", manifest.run},
               {"number", manifest.number},
               {"writer", manifest.writer},
               {"attempt", manifest.attempt},
               {"created_unix_ns", manifest.created_unix_ns},
               {"inventory", manifest.inventory},
               {"digest", manifest.digest.Hex()},
               {"steps", manifest.steps},
               {"base", ToJson(manifest.base)},
               {"parts", Json::array()},
               {"detectors", Json::array()}};
  if (manifest.alias_of) root["alias_of"] = *manifest.alias_of;
  for (const auto& part : manifest.parts) root["parts"].push_back(ToJson(part));
  if (manifest.tensor_digests) root["tensor_digests"] = ToJson(*manifest.tensor_digests);
  root["counts"] = {{"changed", manifest.counts.changed},
                    {"sent", manifest.counts.sent},
                    {"uncertain", manifest.counts.uncertain},
                    {"dense", manifest.counts.dense},
                    {"total", manifest.counts.total}};
  for (const auto& use : manifest.detectors) {
    root["detectors"].push_back({{"detector", use.detector},
                                 {"reason", use.reason},
                                 {"tensors", use.tensors},
                                 {"elements", use.elements}});
  }
  return HashedText(std::move(root));
}

std::string AnchorManifestText(const AnchorManifest& manifest) {
  Json root = {{"format", kAnchorFormat},
               {"format_version", kManifestVersion},
               {"run", manifest.run},
               {"number", manifest.number},
               {"inventory", manifest.inventory},
               {"digest", manifest.digest.Hex()},
               {"manifest", manifest.manifest},
               {"files", Json::array()}};
  for (const auto& file : manifest.files) root["files"].push_back(ToJson(file));
  if (manifest.tensor_digests) root["tensor_digests"] = ToJson(*manifest.tensor_digests);
  return HashedText(std::move(root));
}

Result<Manifest> ParseManifest(ByteSpan text) {
  DELTAWIRE_ASSIGN(const Json root, ParseJson(text, {.max_bytes = kMaxManifestBytes}, "manifest"));
  DELTAWIRE_ASSIGN(const JsonObject object, JsonObject::From(root, "manifest"));
  DELTAWIRE_TRY(object.CheckFormat(kManifestFormat, kManifestVersion));
  DELTAWIRE_TRY(CheckContent(object, text, "manifest"));
  Manifest manifest;
  DELTAWIRE_ASSIGN(manifest.run, object.String("run"));
  DELTAWIRE_ASSIGN(manifest.number, object.Unsigned("number"));
  DELTAWIRE_ASSIGN(manifest.writer, object.String("writer"));
  DELTAWIRE_ASSIGN(manifest.attempt, object.String("attempt"));
  DELTAWIRE_ASSIGN(manifest.created_unix_ns, object.Unsigned("created_unix_ns"));
  DELTAWIRE_ASSIGN(manifest.inventory, object.Sha256("inventory"));
  DELTAWIRE_ASSIGN(manifest.digest, object.StateDigest("digest"));
  DELTAWIRE_ASSIGN(manifest.steps, object.Unsigned("steps"));
  DELTAWIRE_ASSIGN(const JsonObject base, object.Object("base"));
  DELTAWIRE_ASSIGN(manifest.base, BaseFrom(base));
  if (object.Has("alias_of")) {
    DELTAWIRE_ASSIGN(manifest.alias_of, object.Unsigned("alias_of"));
  }
  DELTAWIRE_TRY(ReadList<ManifestPart>(object, "parts", PartFrom, manifest.parts));
  DELTAWIRE_TRY(ReadTensorDigests(object, manifest.tensor_digests));
  DELTAWIRE_ASSIGN(const JsonObject counts, object.Object("counts"));
  DELTAWIRE_ASSIGN(manifest.counts, CountsFrom(counts));
  DELTAWIRE_TRY(ReadList<DetectorUse>(object, "detectors", DetectorFrom, manifest.detectors));
  DELTAWIRE_TRY(AsCorrupt(CheckManifest(manifest)));
  return manifest;
}

Result<AnchorManifest> ParseAnchorManifest(ByteSpan text) {
  DELTAWIRE_ASSIGN(const Json root, ParseJson(text, {.max_bytes = kMaxManifestBytes}, "anchor"));
  DELTAWIRE_ASSIGN(const JsonObject object, JsonObject::From(root, "anchor"));
  DELTAWIRE_TRY(object.CheckFormat(kAnchorFormat, kManifestVersion));
  DELTAWIRE_TRY(CheckContent(object, text, "anchor"));
  AnchorManifest manifest;
  DELTAWIRE_ASSIGN(manifest.run, object.String("run"));
  DELTAWIRE_ASSIGN(manifest.number, object.Unsigned("number"));
  DELTAWIRE_ASSIGN(manifest.inventory, object.Sha256("inventory"));
  DELTAWIRE_ASSIGN(manifest.digest, object.StateDigest("digest"));
  DELTAWIRE_ASSIGN(manifest.manifest, object.Sha256("manifest"));
  DELTAWIRE_TRY(ReadList<ObjectRef>(object, "files", ObjectRefFrom, manifest.files));
  DELTAWIRE_TRY(ReadTensorDigests(object, manifest.tensor_digests));
  DELTAWIRE_TRY(AsCorrupt(CheckAnchorManifest(manifest)));
  return manifest;
}

}  // namespace deltawire::format
