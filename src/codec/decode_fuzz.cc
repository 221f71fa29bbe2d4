// libFuzzer target. Input: coding u8, log2 of the width u8, elements u32, changed u16, uncertain u16, size of
// the entropy section u16 (little-endian), the section, the stream. Seeds: tests/fuzz/codec_decode_fuzz.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "codec/codec.h"
#include "codec/listing.h"

namespace {

constexpr size_t kHeader = 12;

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckPositions(const std::vector<uint32_t>& positions, uint32_t elements) {
  for (size_t i = 0; i < positions.size(); ++i) {
    Require(positions[i] < elements);
    Require(i == 0 || positions[i - 1] < positions[i]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace deltawire;
  using namespace deltawire::codec;
  if (size < kHeader) return 0;
  const auto coding = static_cast<Coding>(data[0]);
  const uint32_t width = 1u << (data[1] & 3);
  const auto elements = LoadLe<uint32_t>(data + 2);
  const uint32_t changed = LoadLe<uint16_t>(data + 6);
  const uint32_t uncertain = LoadLe<uint16_t>(data + 8);
  const ByteSpan rest(data + kHeader, size - kHeader);
  const size_t tables_size = std::min<size_t>(LoadLe<uint16_t>(data + 10), rest.size());
  const auto decoder = Decoder::Open(rest.first(tables_size));
  if (!decoder) return 0;
  auto decoded = decoder->Decode(coding, elements, width, changed, uncertain, rest.subspan(tables_size));
  if (!decoded) return 0;
  if (decoded->ranked) {
    // Bits with keys of every value. Both kernels agree, on what is placed and on what can't be.
    Bytes base(uint64_t{elements} * width);
    for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<uint8_t>((i * 0x9E3779B97F4A7C15) >> 56);
    // In two pieces for one of them.
    const size_t half = base.size() / width / 2 * width;
    const ByteSpan pieces[] = {ByteSpan(base).first(half), ByteSpan(base).subspan(half)};
    const auto by_reference = Place(kernels::RefClassTable(), pieces, {}, *decoded);
    decoded = Place(kernels::CpuClassTable(), base, {}, *decoded);
    Require(decoded.has_value() == by_reference.has_value());
    if (!decoded) return 0;
    Require(decoded->changed == by_reference->changed && decoded->values == by_reference->values &&
            decoded->base_bits == by_reference->base_bits &&
            decoded->populations == by_reference->populations);
  }
  Require(decoded->changed.size() + decoded->uncertain.size() == changed + uncertain);
  CheckPositions(decoded->changed, elements);
  CheckPositions(decoded->uncertain, elements);
  Require(!Intersect(decoded->changed, decoded->uncertain));
  const Bytes old_changed(decoded->values.size(), 0x3F);
  const Bytes old_uncertain(decoded->uncertain_bits.size(), 0xC0);
  Bytes new_changed(old_changed.size());
  Bytes new_uncertain(old_uncertain.size());
  Resolve(*decoded, old_changed, old_uncertain, new_changed, new_uncertain);
  return 0;
}
