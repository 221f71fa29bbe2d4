// Any bytes as a safetensors file and as a checkpoint index: an error or a header that survives a round trip.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "format/hf_index.h"
#include "format/safetensors.h"

using deltawire::ByteSpan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace format = deltawire::format;
  const ByteSpan bytes(data, size);
  if (const auto header = format::ParseSafetensors(bytes, size)) {
    // Names that the writer refuses are the only reason not to write it again.
    if (const auto again = format::WriteSafetensorsHeader(header->entries, header->metadata)) {
      const auto parsed = format::ParseSafetensors(*again, again->size() + (size - header->data_offset));
      if (!parsed || parsed->entries != header->entries || parsed->metadata != header->metadata) std::abort();
    }
  }
  if (const auto index = format::ParseHfIndex(bytes)) {
    if (!format::ParseHfIndex(deltawire::AsBytes(format::HfIndexText(*index)))) std::abort();
  }
  return 0;
}
