#include "store/open.h"

#include <optional>

#include "store/file/file_store.h"

namespace deltawire {
namespace {

// nullopt for a '%' that two hexadecimal digits don't follow, and for an escaped NUL.
std::optional<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const auto digits = text.substr(i + 1, 2);
    const auto byte = FromHex(digits);
    if (digits.size() != 2 || !byte || byte->front() == 0) return std::nullopt;
    decoded += static_cast<char>(byte->front());
    i += 2;
  }
  return decoded;
}

bool IsScheme(std::string_view text) {
  return !text.empty() &&
         text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.") ==
             std::string_view::npos;
}

// The folder that a URL names.
Result<std::string> PathOf(std::string_view url) {
  const auto separator = url.find("://");
  if (separator == std::string_view::npos || !IsScheme(url.substr(0, separator))) return std::string(url);
  const auto scheme = url.substr(0, separator);
  if (scheme != "file")
    return Fail(Code::kUnsupported,
                "store {}: scheme \"{}\" is not in this build; it has file:///absolute/path and plain paths",
                url, scheme);
  auto path = url.substr(separator + 3);
  if (path.starts_with("localhost/")) path.remove_prefix(std::string_view("localhost").size());
  const auto decoded = PercentDecode(path);
  if (!path.starts_with('/') || !decoded)
    return Fail(
        Code::kInvalidArgument,
        "store {}: expected file:///absolute/path, without a host and with well-formed percent-escapes", url);
  return *decoded;
}

}  // namespace

Result<std::shared_ptr<Store>> OpenStore(std::string_view url, bool create) {
  DELTAWIRE_ASSIGN(const auto path, PathOf(url));
  DELTAWIRE_ASSIGN(auto store, FileStore::Open(path, create));
  return std::shared_ptr<Store>(std::move(store));
}

Result<std::shared_ptr<Store>> OpenStoreToRead(std::string_view url) {
  DELTAWIRE_ASSIGN(const auto path, PathOf(url));
  DELTAWIRE_ASSIGN(auto store, FileStore::OpenToRead(path));
  return std::shared_ptr<Store>(std::move(store));
}

}  // namespace deltawire
