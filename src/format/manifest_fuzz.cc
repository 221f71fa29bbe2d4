// Any bytes as a manifest, an anchor's manifest and an inventory; also with the content hash repaired, so
// that the fields behind it are reached.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/hash.h"
#include "format/inventory.h"
#include "format/manifest.h"

using deltawire::AsBytes;

namespace {

namespace format = deltawire::format;

void Try(const std::string& text) {
  if (const auto manifest = format::ParseManifest(AsBytes(text))) {
    const auto again = format::ParseManifest(AsBytes(format::ManifestText(*manifest)));
    if (!again || *again != *manifest) std::abort();
  }
  if (const auto anchor = format::ParseAnchorManifest(AsBytes(text))) {
    const auto again = format::ParseAnchorManifest(AsBytes(format::AnchorManifestText(*anchor)));
    if (!again || *again != *anchor) std::abort();
  }
  if (const auto inventory = format::ParseInventory(AsBytes(text))) {
    if (format::InventoryText(*inventory) != text) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  Try(text);
  const std::string key = "\"content\":\"";
  const size_t at = text.find(key);
  if (at == std::string::npos || text.size() - at - key.size() < 32) return 0;
  text.replace(at + key.size(), 32, std::string(32, '0'));
  text.replace(at + key.size(), 32, deltawire::ToHex(deltawire::Xxh3_128(AsBytes(text))));
  Try(text);
  return 0;
}
