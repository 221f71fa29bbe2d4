#include "base/object_name.h"

namespace deltawire {
namespace {

bool IsAllowed(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-' || c == '+' || c == '=' || c == '@';
}

bool IsSafeComponent(std::string_view component) {
  if (component.empty() || component.size() > 200 || component.front() == '.') return false;
  for (const char c : component)
    if (!IsAllowed(c)) return false;
  return true;
}

}  // namespace

bool IsSafeObjectName(std::string_view name) {
  if (name.size() > 900) return false;
  for (;;) {
    const auto slash = name.find('/');
    if (!IsSafeComponent(name.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

}  // namespace deltawire
