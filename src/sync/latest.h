// LATEST: a hint at the newest version, for listings that lag and for people. Never trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "store/store.h"

namespace deltawire::sync {

inline constexpr std::string_view kLatestName = "LATEST";

// The number in decimal and a newline.
std::string LatestText(uint64_t number);
// nullopt when it is missing, unreadable or garbage. What it names need not exist.
std::optional<uint64_t> ReadLatest(Store& store);

}  // namespace deltawire::sync
