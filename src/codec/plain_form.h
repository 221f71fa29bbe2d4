// The form of a stream that needs no entropy table: for a handful of changes, and for values that don't
// compress.
#pragma once

#include "codec/codec.h"

namespace deltawire::codec {

// How the values of changed elements are written.
enum class PlainValues : uint8_t {
  kFixed,   // width bytes each
  kVarint,  // folded steps as LEB128; kStep only
};

// Bytes that WritePlain appends.
uint64_t PlainSize(const Decoded& listing, uint32_t elements, PlainValues values);
void WritePlain(const Decoded& listing, uint32_t elements, PlainValues values, Bytes& out);

// kCorrupt unless body, used up exactly, holds that many elements. elements, width and counts are valid.
Result<Decoded> ReadPlain(PlainValues values, bool steps, uint32_t elements, uint32_t width, uint32_t changed,
                          uint32_t uncertain, ByteSpan body);

}  // namespace deltawire::codec
