#include "sync/latest.h"

#include <charconv>

namespace deltawire::sync {

std::string LatestText(uint64_t number) { return fmt::format("{}\n", number); }

std::optional<uint64_t> ReadLatest(Store& store) {
  constexpr uint64_t kMaxBytes = 64;
  const auto bytes = store.Get(kLatestName, kMaxBytes);
  if (!bytes) return std::nullopt;
  auto text = AsText(*bytes);
  if (text.ends_with('\n')) text.remove_suffix(1);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace deltawire::sync
