// The loops that define every result of HostTable.
#include "kernels/element.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {
namespace {

void DigestChanges(uint64_t key, uint64_t canonical, uint32_t width, const uint32_t* pos, uint32_t k,
                   const void* old_bits, const void* new_bits, uint64_t lanes[2]) {
  uint64_t before[2] = {0, 0}, after[2] = {0, 0};
  for (uint64_t i = 0; i < k; ++i) {
    const uint64_t byte = canonical + uint64_t{pos[i]} * width;
    DigestElement(key, byte, LoadBits(static_cast<const uint8_t*>(old_bits) + i * width, width), before);
    DigestElement(key, byte, LoadBits(static_cast<const uint8_t*>(new_bits) + i * width, width), after);
  }
  for (int lane = 0; lane < 2; ++lane) lanes[lane] += after[lane] - before[lane];
}

template <typename T>
void StepsOf(const void* old_bits, const void* new_bits, uint32_t k, void* steps) {
  for (uint64_t i = 0; i < k; ++i) {
    const T before = LoadAs<T>(static_cast<const T*>(old_bits) + i);
    const T after = LoadAs<T>(static_cast<const T*>(new_bits) + i);
    StoreAs<T>(static_cast<T*>(steps) + i, static_cast<T>(Ordinal(after) - Ordinal(before)));
  }
}

template <typename T>
void ApplyStepsOf(const void* old_bits, const void* steps, uint32_t k, void* new_bits) {
  for (uint64_t i = 0; i < k; ++i) {
    const T before = LoadAs<T>(static_cast<const T*>(old_bits) + i);
    const T step = LoadAs<T>(static_cast<const T*>(steps) + i);
    StoreAs<T>(static_cast<T*>(new_bits) + i, Ordinal(static_cast<T>(Ordinal(before) + step)));
  }
}

void Steps(uint32_t width, const void* old_bits, const void* new_bits, uint32_t k, void* steps) {
  if (width == 1) StepsOf<uint8_t>(old_bits, new_bits, k, steps);
  if (width == 2) StepsOf<uint16_t>(old_bits, new_bits, k, steps);
  if (width == 4) StepsOf<uint32_t>(old_bits, new_bits, k, steps);
  if (width == 8) StepsOf<uint64_t>(old_bits, new_bits, k, steps);
}

void ApplySteps(uint32_t width, const void* old_bits, const void* steps, uint32_t k, void* new_bits) {
  if (width == 1) ApplyStepsOf<uint8_t>(old_bits, steps, k, new_bits);
  if (width == 2) ApplyStepsOf<uint16_t>(old_bits, steps, k, new_bits);
  if (width == 4) ApplyStepsOf<uint32_t>(old_bits, steps, k, new_bits);
  if (width == 8) ApplyStepsOf<uint64_t>(old_bits, steps, k, new_bits);
}

constexpr HostTable kTable = {
    .name = "ref", .digest_changes = DigestChanges, .steps = Steps, .apply_steps = ApplySteps};

}  // namespace

const HostTable& RefHostTable() { return kTable; }

}  // namespace deltawire::kernels
