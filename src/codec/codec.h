// Coding of one block's changes. Pure functions from spans to bytes and back: no I/O, clock or threads.
// The byte streams are specified in docs/formats/codings.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace deltawire::codec {

// Written into block tables: append only. 3 is reserved for `class`, 4 for `open`.
enum class Coding : uint8_t {
  kDense = 0,     // every element's new bits, raw
  kAbsolute = 1,  // positions and new bits: needs no base, idempotent
  kStep = 2,      // positions and ordinal steps: needs the old bits at the changed positions
};

// A block to encode. `elements` <= 2^21; width 1, 2, 4 or 8 bytes. Positions ascend and are distinct; the two
// lists are disjoint. Spans are only read during the call.
struct BlockChanges {
  uint32_t elements = 0;
  uint32_t width = 0;
  std::span<const uint32_t> changed;
  ByteSpan old_bits;  // not read for kAbsolute
  ByteSpan new_bits;
  // Elements whose base the writer does not know exactly (change_set.h). With kAbsolute they are coded like
  // the others. uncertain_low and uncertain_span are used for width 2 only.
  std::span<const uint32_t> uncertain;
  std::span<const uint16_t> uncertain_low;
  std::span<const uint8_t> uncertain_span;
  ByteSpan uncertain_new;
};

// Encodes the blocks of one part with entropy tables shared by all of them: Survey every block, then
// ChooseTables, then Encode each. Survey and ChooseTables: one thread; Encode: any number.
class Encoder {
 public:
  explicit Encoder(Coding coding);  // kAbsolute or kStep
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  void Survey(const BlockChanges& block);
  void ChooseTables();
  // The serialised tables: the part's entropy section. Empty when no block was surveyed.
  ByteSpan tables() const;
  // Appends the block's stream to out. The block must have been surveyed (an encoder whose tables lack a
  // symbol is our bug: kInternal). Decodes what it wrote and compares before it returns: kInternal if the
  // stream does not give the block back.
  Status Encode(const BlockChanges& block, Bytes& out) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a block says before it meets its base.
struct Decoded {
  uint32_t width = 0;
  bool steps = false;             // values are ordinal steps (kStep), else new bits
  std::vector<uint32_t> changed;  // ascending, distinct, < elements
  Bytes values;
  std::vector<uint32_t> uncertain;  // ascending, distinct, disjoint from changed; empty for kAbsolute
  // Per uncertain element: 0..3 = new value modulo 4 in ordinal space, within [old - 1, old + 2];
  // 0xFF = its bits stand in uncertain_bits (which has width bytes for each element).
  std::vector<uint8_t> uncertain_residue;
  Bytes uncertain_bits;
};

// Reads streams made with one set of tables. Total: any bytes give a result or kCorrupt; no read outside
// `stream`, no allocation beyond O(changed + uncertain), time O(stream + changed + uncertain).
class Decoder {
 public:
  // tables: an entropy section.
  static Result<Decoder> Open(ByteSpan tables);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // The counts come from the block table; for kAbsolute, whose lists are merged, only their sum matters. The
  // stream must be used up exactly. Thread-safe.
  Result<Decoded> Decode(Coding coding, uint32_t elements, uint32_t width, uint32_t changed,
                         uint32_t uncertain, ByteSpan stream) const;

 private:
  struct State;
  explicit Decoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Turns steps and residues into new bits, given the old bits at the same positions (width bytes each; not
// read when `decoded.steps` is false). Outputs have the inputs' sizes. Total: every input is valid.
void Resolve(const Decoded& decoded, ByteSpan old_changed, ByteSpan old_uncertain,
             MutableByteSpan new_changed, MutableByteSpan new_uncertain);

}  // namespace deltawire::codec
