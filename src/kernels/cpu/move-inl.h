// Served bits to the host or to other memory, and back: read, copy, gather, scatter, write.
#if defined(DELTAWIRE_KERNELS_CPU_MOVE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWIRE_KERNELS_CPU_MOVE_INL_H
#undef DELTAWIRE_KERNELS_CPU_MOVE_INL_H
#else
#define DELTAWIRE_KERNELS_CPU_MOVE_INL_H
#endif

#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltawire::kernels::HWY_NAMESPACE {
namespace {

// Changes are about a hundred elements apart, so every access is its own cache line: keep many in flight, on
// their way to the second-level cache, because the first level has buffers for a few only (scattering into
// cold memory took 1.5 times as long).
constexpr uint32_t kAhead = 64;

template <Cast kCast>
void ReadStridedCast(const uint8_t* live, int64_t stride, uint32_t n, void* out) {
  const int64_t step = stride * static_cast<int64_t>(sizeof(Stored<kCast>));
  for (int64_t i = 0; i < n; ++i) {
    StoreAs<Served<kCast>>(static_cast<Served<kCast>*>(out) + i, ServedAt<kCast>(live + i * step, 0));
  }
}

template <Cast kCast>
void GatherCast(const uint8_t* live, const uint32_t* pos, uint32_t k, void* out) {
  auto* served = static_cast<Served<kCast>*>(out);
  uint32_t i = 0;
  for (; i + kAhead < k; ++i) {
    __builtin_prefetch(live + uint64_t{pos[i + kAhead]} * sizeof(Stored<kCast>), 0, 2);
    StoreAs<Served<kCast>>(served + i, ServedAt<kCast>(live, pos[i]));
  }
  for (; i < k; ++i) StoreAs<Served<kCast>>(served + i, ServedAt<kCast>(live, pos[i]));
}

template <typename T>
void ScatterWidth(uint8_t* live, const uint32_t* pos, uint32_t k, const void* bits) {
  const auto* values = static_cast<const T*>(bits);
  uint32_t i = 0;
  for (; i + kAhead < k; ++i) {
    __builtin_prefetch(live + uint64_t{pos[i + kAhead]} * sizeof(T), 0, 2);
    StoreAs<T>(live + uint64_t{pos[i]} * sizeof(T), LoadAs<T>(values + i));
  }
  for (; i < k; ++i) StoreAs<T>(live + uint64_t{pos[i]} * sizeof(T), LoadAs<T>(values + i));
}

}  // namespace

void Read(Source live, Cast cast, uint32_t n, void* out) {
  const uint8_t* p = Address(live);
  auto* to = static_cast<uint8_t*>(out);
  switch (cast) {
    case Cast::kBits8:
    case Cast::kBits16:
    case Cast::kBits32:
    case Cast::kBits64:
      if (n != 0) std::memcpy(to, p, uint64_t{n} * ServedBytes(cast));
      return;
    case Cast::kF32ToBf16: return CastTo<Cast::kF32ToBf16>(p, n, to);
    case Cast::kF32ToF16: return CastTo<Cast::kF32ToF16>(p, n, to);
    case Cast::kBf16ToF32: return CastTo<Cast::kBf16ToF32>(p, n, to);
    case Cast::kF16ToF32: return CastTo<Cast::kF16ToF32>(p, n, to);
  }
}

void Copy(Source live, Cast cast, uint32_t n, Target served) { Read(live, cast, n, Address(served)); }

void ReadStrided(Source live, Cast cast, int64_t stride, uint32_t n, void* out) {
  const uint8_t* p = Address(live);
  switch (cast) {
    case Cast::kBits8: return ReadStridedCast<Cast::kBits8>(p, stride, n, out);
    case Cast::kBits16: return ReadStridedCast<Cast::kBits16>(p, stride, n, out);
    case Cast::kBits32: return ReadStridedCast<Cast::kBits32>(p, stride, n, out);
    case Cast::kBits64: return ReadStridedCast<Cast::kBits64>(p, stride, n, out);
    case Cast::kF32ToBf16: return ReadStridedCast<Cast::kF32ToBf16>(p, stride, n, out);
    case Cast::kF32ToF16: return ReadStridedCast<Cast::kF32ToF16>(p, stride, n, out);
    case Cast::kBf16ToF32: return ReadStridedCast<Cast::kBf16ToF32>(p, stride, n, out);
    case Cast::kF16ToF32: return ReadStridedCast<Cast::kF16ToF32>(p, stride, n, out);
  }
}

void Gather(Source live, Cast cast, const uint32_t* pos, uint32_t k, void* out) {
  const uint8_t* p = Address(live);
  switch (cast) {
    case Cast::kBits8: return GatherCast<Cast::kBits8>(p, pos, k, out);
    case Cast::kBits16: return GatherCast<Cast::kBits16>(p, pos, k, out);
    case Cast::kBits32: return GatherCast<Cast::kBits32>(p, pos, k, out);
    case Cast::kBits64: return GatherCast<Cast::kBits64>(p, pos, k, out);
    case Cast::kF32ToBf16: return GatherCast<Cast::kF32ToBf16>(p, pos, k, out);
    case Cast::kF32ToF16: return GatherCast<Cast::kF32ToF16>(p, pos, k, out);
    case Cast::kBf16ToF32: return GatherCast<Cast::kBf16ToF32>(p, pos, k, out);
    case Cast::kF16ToF32: return GatherCast<Cast::kF16ToF32>(p, pos, k, out);
  }
}

void Scatter(Target live, uint32_t width, const uint32_t* pos, uint32_t k, const void* bits) {
  switch (width) {
    case 1: return ScatterWidth<uint8_t>(Address(live), pos, k, bits);
    case 2: return ScatterWidth<uint16_t>(Address(live), pos, k, bits);
    case 4: return ScatterWidth<uint32_t>(Address(live), pos, k, bits);
    case 8: return ScatterWidth<uint64_t>(Address(live), pos, k, bits);
  }
}

void Write(Target live, uint32_t width, uint32_t n, const void* bits) {
  if (n != 0) std::memcpy(Address(live), bits, uint64_t{n} * width);
}

}  // namespace deltawire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAWIRE_KERNELS_CPU_MOVE_INL_H
