// Bulk loops over raw spans, one table per backend. A call sees at most one block; nothing here allocates
// (except where a backend's own runtime does), starts threads or logs. Every backend gives the bits of
// kernels/ref, which is normative.
#pragma once

#include <cstdint>

namespace deltawire::kernels {

// Elements a call may be given at most: the size of a block.
inline constexpr uint32_t kMaxElements = 1u << 21;

// Stored dtype -> served bits. kBits*: the stored bits are served as they are.
enum class Cast : uint8_t {
  kBits8,
  kBits16,
  kBits32,
  kBits64,
  kF32ToBf16,  // round to nearest even; any NaN -> 0xFFFF, as torch's contiguous CPU cast gives
  kF32ToF16,   // round to nearest even, overflow -> infinity; NaN -> sign | 0x7E00 | mantissa >> 13 (as F16C)
  kBf16ToF32,  // exact
  kF16ToF32,   // exact; subnormals kept; a signalling NaN becomes quiet (as F16C)
};
constexpr uint32_t StoredBytes(Cast cast) {
  switch (cast) {
    case Cast::kBits8: return 1;
    case Cast::kBits16:
    case Cast::kBf16ToF32:
    case Cast::kF16ToF32: return 2;
    case Cast::kBits32:
    case Cast::kF32ToBf16:
    case Cast::kF32ToF16: return 4;
    case Cast::kBits64: return 8;
  }
  return 0;
}
constexpr uint32_t ServedBytes(Cast cast) {
  switch (cast) {
    case Cast::kBits8: return 1;
    case Cast::kBits16:
    case Cast::kF32ToBf16:
    case Cast::kF32ToF16: return 2;
    case Cast::kBits32:
    case Cast::kBf16ToF32:
    case Cast::kF16ToF32: return 4;
    case Cast::kBits64: return 8;
  }
  return 0;
}

// Memory as its backend knows it: Memory::handle() and a byte offset. On the host, base + offset is an
// address, aligned to the element or not.
struct Source {
  const void* base;
  uint64_t offset;
};
struct Target {
  void* base;
  uint64_t offset;
};

// Constants of one AdamW step of one parameter group for the guarded inversion (docs/numerics.md;
// MakeAdamwBand in kernels/adamw_band.h computes them).
struct AdamwBand {
  float k1, k2;   // lambda / c, 1 / c
  float s, r;     // lr / bc1, 1 / bc2
  float eps;      // > 0
  float a, b, c;  // half width of the band: a |theta'| + (b |u| + c)
  bool tiny_eps;  // eps < 2^-36: elements with m != 0 and v < 2^-100 are always flagged
  // Whether a weight of +0 whose stored m is zero has not changed, set Z aside. Otherwise m may have been
  // rounded to zero after it moved the weight by more than set Z reaches.
  bool idle_stays;
};

// How the moments are stored: float32, or BF16, which is widened as it is read.
struct Moments {
  bool m_is_bf16 = false;
  bool v_is_bf16 = false;
};

// Constants of one SGD step of one parameter group (MakeSgdBand in kernels/sgd_band.h computes them). The
// update is u = s (x + mu y), its size |s| (|x| + |mu| |y|).
struct SgdBand {
  float k1, k2;   // lambda / c, 1 / c
  float s, mu;    // lr, factor of y
  float a, b, c;  // half width of the band: a |theta'| + (b size + c)
};

// Result lists of an inversion. Each array has room for the call's n elements; positions are relative to the
// call's first element and ascending.
struct Inverted {
  uint32_t* changed;        // base certified and different from the new bits
  uint16_t* changed_old;    // its certified bits
  uint32_t* uncertain;      // flagged without a certificate
  uint16_t* uncertain_low;  // span 1: the lower of two neighbouring candidates in ordinal order; span 0: 0
  uint8_t* uncertain_span;
  uint32_t changed_count;
  uint32_t uncertain_count;
};

// Operations on memory of one device. n and k are element counts. Outputs without `Target` are host arrays:
// only results cross from a device.
struct Table {
  const char* name;

  // lanes += digest of the served bits of n elements that stand, consecutive, at byte `canonical` of the
  // tensor whose key is `key` (canonical is a multiple of the served width).
  void (*digest)(Source live, Cast cast, uint32_t n, uint64_t canonical, uint64_t key, uint64_t lanes[2]);

  // Positions whose served bits differ from `old` (served width, same device), with both values.
  // Arrays have room for n. Returns how many. Compares bits: -0 != +0, NaN payloads count.
  uint32_t (*compare)(Source old, Source live, Cast cast, uint32_t n, uint32_t* pos, void* old_bits,
                      void* new_bits);

  // Served bits of n elements to the host; to memory of the same device (dense, served width).
  void (*read)(Source live, Cast cast, uint32_t n, void* out);
  void (*copy)(Source live, Cast cast, uint32_t n, Target served);
  // As read, from elements `stride` stored elements apart (stride may be 0 or negative).
  void (*read_strided)(Source live, Cast cast, int64_t stride, uint32_t n, void* out);

  // Served bits at k positions to the host.
  void (*gather)(Source live, Cast cast, const uint32_t* pos, uint32_t k, void* out);
  // Host bits of `width` bytes to k ascending, distinct positions; to n consecutive elements.
  void (*scatter)(Target live, uint32_t width, const uint32_t* pos, uint32_t k, const void* bits);
  void (*write)(Target live, uint32_t width, uint32_t n, const void* bits);

  // Guarded inversion of one AdamW step: theta (float32), m and v as they are after it; serving BF16 (RNE).
  // Sound: an element in neither list has the same BF16 bits before and after, except members of set Z
  // (select_small), which the caller compares itself. In the same pass, because theta is in registers:
  // lanes += digest of the served BF16 bits, with canonical and key as in `digest`. lanes may be null: no
  // digest.
  void (*invert_adamw)(Source theta, Source m, Source v, Moments stored, const AdamwBand& band, uint32_t n,
                       uint64_t canonical, uint64_t key, uint64_t lanes[2], Inverted* out);
  // The same for one SGD step theta' = theta - lr (x + mu y + weight_decay theta): theta after the step, x
  // and y as the step used them, all float32. y.base null: there is no y.
  void (*invert_sgd)(Source theta, Source x, Source y, const SgdBand& band, uint32_t n, uint64_t canonical,
                     uint64_t key, uint64_t lanes[2], Inverted* out);

  // Set Z: positions whose served BF16 is 0x8000 or has a magnitude of 1 ... 0x0800, with the bits.
  uint32_t (*select_small)(Source live, Cast cast, uint32_t n, uint32_t* pos, uint16_t* bits);
};

// Operations on host arrays, whatever device the tensors are on.
struct HostTable {
  const char* name;

  // lanes += sum of (digest of new - digest of old) of k elements of `width` bytes; element i stands at byte
  // canonical + pos[i] * width. The order of pos does not matter; equal positions must not occur.
  void (*digest_changes)(uint64_t key, uint64_t canonical, uint32_t width, const uint32_t* pos, uint32_t k,
                         const void* old_bits, const void* new_bits, uint64_t lanes[2]);

  // Steps in the monotone integer order of sign-magnitude bits: o(x) = x for sign 0, the complement of the
  // magnitude bits for sign 1 (so o(-0) = -1 as a signed integer); step = o(new) - o(old) mod 2^(8 width).
  // width is 1, 2, 4 or 8.
  void (*steps)(uint32_t width, const void* old_bits, const void* new_bits, uint32_t k, void* steps);
  // The inverse: new = o^-1(o(old) + step).
  void (*apply_steps)(uint32_t width, const void* old_bits, const void* steps, uint32_t k, void* new_bits);
};

// The ten-line loops that define every result.
const Table& RefTable();
const HostTable& RefHostTable();

// The best that this processor runs, chosen once at the first call.
const Table& CpuTable();
const HostTable& CpuHostTable();

}  // namespace deltawire::kernels
