#include "store/checks.h"

#include "base/object_name.h"

namespace deltawire {

Status CheckObjectName(std::string_view name) {
  if (IsSafeObjectName(name)) return {};
  // The name may come from a hostile manifest: shortened, and control characters kept out of terminals.
  std::string shown;
  for (const char c : name.substr(0, 80)) shown += (c >= ' ' && c <= '~') ? c : '?';
  return Fail(
      Code::kInvalidArgument,
      "object name \"{}\"{} is not allowed; expected components of letters, digits and ._-+=@ that don't "
      "start with a dot, joined by single slashes",
      shown, name.size() > 80 ? "..." : "");
}

Status CheckObjectSize(std::string_view name, uint64_t size_bytes, uint64_t max_bytes) {
  if (size_bytes <= max_bytes) return {};
  return Fail(Code::kCorrupt, "object {} has {} bytes; expected at most {}", name, size_bytes, max_bytes);
}

Status CheckObjectRange(std::string_view name, uint64_t size_bytes, uint64_t offset, uint64_t length) {
  if (offset <= size_bytes && length <= size_bytes - offset) return {};
  return Fail(Code::kCorrupt, "object {} has {} bytes; expected {} bytes at offset {}", name, size_bytes,
              length, offset);
}

}  // namespace deltawire
