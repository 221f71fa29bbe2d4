// Names of objects in a store, as they appear in manifests and in folders.
#pragma once

#include <string_view>

namespace deltawire {

// True for names that mean the same object in every store and can't leave its root: components of 1 to 200
// characters from A-Z a-z 0-9 . _ - + = @ joined by single '/', none starting with '.', 1 to 900 characters
// in all. So no "..", no absolute or drive-like path, no hidden file, no control character.
bool IsSafeObjectName(std::string_view name);

}  // namespace deltawire
