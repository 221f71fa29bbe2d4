// Refusals that every store words alike.
#pragma once

#include <string_view>

#include "store/store.h"

namespace deltawire {

// kInvalidArgument unless IsSafeObjectName(name).
Status CheckObjectName(std::string_view name);
// kCorrupt when an object is larger than its reader allows.
Status CheckObjectSize(std::string_view name, uint64_t size_bytes, uint64_t max_bytes);
// kCorrupt when [offset, offset + length) is not inside an object of size_bytes.
Status CheckObjectRange(std::string_view name, uint64_t size_bytes, uint64_t offset, uint64_t length);

}  // namespace deltawire
