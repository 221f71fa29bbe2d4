// The forms of a stream that need no entropy table: for a handful of changes, and for values that don't
// compress.
#pragma once

#include <optional>

#include "codec/codec.h"

namespace deltawire::codec {

// The first byte of a stream: a form without tables, or the number of a table or profile.
inline constexpr uint8_t kFirstCodedForm = 2;
inline constexpr uint8_t kLastCodedForm = 253;

struct PlainForm {
  bool bitmap = false;   // positions as one bit an element, else as gaps
  bool varints = false;  // folded steps as LEB128, else width bytes a value; for steps only

  uint8_t byte() const { return static_cast<uint8_t>((bitmap ? 254 : 0) + varints); }
};
// nullopt for the other forms.
std::optional<PlainForm> PlainFormOf(uint8_t form);

struct PlainChoice {
  PlainForm form;
  uint64_t size = 0;  // of the stream, form byte included: exact
};
// The smallest plain form of these changes.
PlainChoice BestPlain(const Decoded& listing, uint32_t elements);
// Appends the stream, form byte included.
void WritePlain(const Decoded& listing, uint32_t elements, PlainForm form, Bytes& out);

// kCorrupt unless body (the stream without its form byte), used up exactly, holds that many elements.
// elements, width and counts are valid.
Result<Decoded> ReadPlain(PlainForm form, bool steps, uint32_t elements, uint32_t width, uint32_t changed,
                          uint32_t uncertain, ByteSpan body);

}  // namespace deltawire::codec
