#include "tensor/dtype.h"

#include <array>

namespace deltawire {
namespace {

struct Entry {
  std::string_view name;
  uint32_t bytes;
};
constexpr std::array<Entry, kDtypeCount> kEntries = {{
    {"BOOL", 1},    {"U8", 1},          {"I8", 1},          {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"F8_E8M0", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"I16", 2},     {"U16", 2},
    {"F16", 2},     {"BF16", 2},        {"I32", 4},         {"U32", 4},     {"F32", 4},
    {"C64", 8},     {"F64", 8},         {"I64", 8},         {"U64", 8},
}};

}  // namespace

uint32_t DtypeBytes(Dtype dtype) { return kEntries[static_cast<size_t>(dtype)].bytes; }
std::string_view DtypeName(Dtype dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

std::optional<Dtype> DtypeFromName(std::string_view name) {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

bool IsPlainFloat(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBf16 || dtype == Dtype::kF32 || dtype == Dtype::kF64;
}

}  // namespace deltawire
