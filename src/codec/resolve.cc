#include <cstring>

#include "codec/codec.h"
#include "codec/ordinal.h"

namespace deltawire::codec {

void Resolve(const Decoded& decoded, ByteSpan old_changed, ByteSpan old_uncertain,
             MutableByteSpan new_changed, MutableByteSpan new_uncertain) {
  WithWidth(decoded.width, [&](auto zero) {
    using U = decltype(zero);
    const size_t changed_bytes = decoded.values.size();
    if (!decoded.steps) {
      if (changed_bytes > 0) std::memcpy(new_changed.data(), decoded.values.data(), changed_bytes);
      return;
    }
    for (size_t at = 0; at < changed_bytes; at += sizeof(U)) {
      const U before = Ordinal(LoadLe<U>(old_changed.data() + at));
      const U step = LoadLe<U>(decoded.values.data() + at);
      StoreLe(Ordinal(static_cast<U>(before + step)), new_changed.data() + at);
    }
    for (size_t i = 0; i < decoded.uncertain.size(); ++i) {
      const size_t at = i * sizeof(U);
      U after = LoadLe<U>(decoded.uncertain_bits.data() + at);
      if (decoded.uncertain_residue[i] != 0xFF) {
        // The one value of [old - 1, old + 2] with this residue.
        const U lowest = static_cast<U>(Ordinal(LoadLe<U>(old_uncertain.data() + at)) - 1);
        const U above = static_cast<U>(decoded.uncertain_residue[i] - lowest) & 3;
        after = Ordinal(static_cast<U>(lowest + above));
      }
      StoreLe(after, new_uncertain.data() + at);
    }
  });
}

}  // namespace deltawire::codec
