// Any bytes as each part of a slime delta: index, state, data file, and the difference of one tensor.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "interchange/slime_delta.h"
#include "interchange/zstd_frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace interchange = deltawire::interchange;
  using deltawire::Bytes;
  const deltawire::ByteSpan bytes(data, size);
  if (const auto index = interchange::ParseSlimeIndex(bytes)) {
    const auto again = interchange::ParseSlimeIndex(deltawire::AsBytes(interchange::SlimeIndexText(*index)));
    if (!again || *again != *index) std::abort();
  }
  (void)interchange::ParseSlimeState(bytes);
  for (const auto checksum : {interchange::Checksum::kXxh3, interchange::Checksum::kAdler32}) {
    const auto tensors = interchange::ParseSlimeFile(bytes, checksum);
    for (size_t i = 0; tensors && i < tensors->size(); ++i) {
      for (const auto encoding : {interchange::SlimeEncoding::kXor, interchange::SlimeEncoding::kOverwrite}) {
        Bytes base(100);
        (void)interchange::ApplySlime(encoding, checksum, (*tensors)[i], base);
      }
    }
  }
  for (const uint64_t most : {0, 8, 5000}) {
    const auto content = interchange::DecompressFrame(bytes, most);
    if (content && content->size() > most) std::abort();
  }
  return 0;
}
