#include "detect/change_log.h"

#include <utility>

namespace deltawire::detect {

ChangeLog Merge(ChangeLog older, ChangeLog newer) {
  if (newer.empty()) return older;
  if (older.empty()) return newer;
  ChangeLog out;
  out.reserve(older.size() + newer.size());
  auto a = older.begin();
  auto b = newer.begin();
  while (a != older.end() && b != newer.end()) {
    if (b->position < a->position) {
      out.push_back(*b++);
    } else {
      if (a->position == b->position) ++b;
      out.push_back(*a++);
    }
  }
  out.insert(out.end(), a, older.end());
  out.insert(out.end(), b, newer.end());
  out.shrink_to_fit();
  return out;
}

}  // namespace deltawire::detect
