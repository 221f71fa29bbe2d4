#include "pubsub/part_header.h"

#include <optional>
#include <string>

namespace deltawire::pubsub {
namespace {

std::string Text(const std::optional<uint64_t>& number) { return number ? std::to_string(*number) : "none"; }
std::string Text(const std::optional<Digest>& digest) { return digest ? digest->Hex() : "none"; }

Status Same(std::string_view field, const std::string& part, const std::string& manifest) {
  if (part == manifest) return {};
  return Fail(Code::kCorrupt, "the part's {} is {}, its manifest's is {}", field, part, manifest);
}

}  // namespace

Status CheckPartHeader(const format::UpdateHeader& header, const format::Manifest& manifest) {
  using Kind = format::BaseRef::Kind;
  const auto base =
      manifest.base.kind == Kind::kVersion ? std::optional<uint64_t>(manifest.base.number) : std::nullopt;
  const auto base_digest =
      manifest.base.kind == Kind::kNone ? std::nullopt : std::optional<Digest>(manifest.base.digest);
  DELTAWIRE_TRY(Same("run", header.run, manifest.run));
  DELTAWIRE_TRY(Same("number", std::to_string(header.number), std::to_string(manifest.number)));
  DELTAWIRE_TRY(Same("inventory", header.inventory, manifest.inventory));
  DELTAWIRE_TRY(Same("base", Text(header.base), Text(base)));
  DELTAWIRE_TRY(Same("base digest", Text(header.base_digest), Text(base_digest)));
  return Same("digest", header.digest.Hex(), manifest.digest.Hex());
}

}  // namespace deltawire::pubsub
