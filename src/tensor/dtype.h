// Element types, named and numbered as safetensors names them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace deltawire {

// The values are part of our byte formats: append only.
enum class Dtype : uint8_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kF8E5M2 = 3,
  kF8E4M3 = 4,
  kF8E8M0 = 5,
  kF8E4M3Fnuz = 6,
  kF8E5M2Fnuz = 7,
  kI16 = 8,
  kU16 = 9,
  kF16 = 10,
  kBf16 = 11,
  kI32 = 12,
  kU32 = 13,
  kF32 = 14,
  kC64 = 15,
  kF64 = 16,
  kI64 = 17,
  kU64 = 18,
};
inline constexpr uint8_t kDtypeCount = 19;

// Bytes an element: 1, 2, 4 or 8.
uint32_t DtypeBytes(Dtype dtype);
// safetensors spelling, e.g. "BF16".
std::string_view DtypeName(Dtype dtype);
// nullopt for an unknown or differently spelled name (the comparison is case-sensitive), and for
// the sub-byte types F4 and F6_*, which deltawire does not manage.
std::optional<Dtype> DtypeFromName(std::string_view name);
// F16, BF16, F32, F64: the dtypes that the default serving rule casts to BF16.
bool IsPlainFloat(Dtype dtype);

}  // namespace deltawire
