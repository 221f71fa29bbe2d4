// Coding of one block's changes. Pure functions from spans to bytes and back: no I/O, clock or threads.
// The byte streams are specified in docs/formats/codings.md.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "kernels/class_walk.h"

namespace deltawire::codec {

// Written into block tables: append only.
enum class Coding : uint8_t {
  kDense = 0,     // every element's new bits, raw
  kAbsolute = 1,  // positions and new bits: needs no base, idempotent
  kStep = 2,      // positions and ordinal steps: needs the old bits at the changed positions
  kClass = 3,     // ranks within classes of the base, and ordinal steps: needs the whole block's base
  kOpen = 4,      // a file of its own, without streams (format/open_patch.h): never in a block table
};

// A block's bits in the order of its elements, as one or more pieces of memory: each a whole number of
// elements, together elements * width bytes.
using BlockBits = std::span<const ByteSpan>;

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

struct Pieces;

// A block between Prepare and Encode: what its stream consists of, before there are tables. About 2 bytes a
// changed element.
class PreparedBlock {
 public:
  PreparedBlock();
  ~PreparedBlock();
  PreparedBlock(PreparedBlock&&) noexcept;
  PreparedBlock& operator=(PreparedBlock&&) noexcept;

 private:
  friend class Encoder;
  std::unique_ptr<Pieces> pieces_;
};

// Encodes the blocks of one part with entropy tables shared by all of them: Prepare every block (any number
// of threads), Survey each, ChooseTables (one thread), Encode each (any number of threads). kClass begins
// with SampleBase and SampleChanges of every block, then ChooseClasses.
class Encoder {
 public:
  // coding: kAbsolute, kStep or kClass. walk: for kClass, else not used; outlives the encoder.
  explicit Encoder(Coding coding, const kernels::ClassTable* walk = nullptr);
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  // Bits of some elements (old or new: they differ little) of a block of `elements`.
  void SampleBase(uint32_t width, uint32_t elements, ByteSpan some);
  void SampleChanges(const BlockChanges& block);
  // At most `most` classes (1 ... kernels::kMaxClasses) for each width; 8 is the default, 12 gains about 1 %
  // at densities above 1 %.
  void ChooseClasses(uint32_t most);

  // block_bits: for kClass, the new bits of the whole block; else not read. kInvalidArgument when they are
  // not the block's elements.
  Status Prepare(const BlockChanges& block, BlockBits block_bits, PreparedBlock& out) const;
  Status Prepare(const BlockChanges& block, ByteSpan block_bits, PreparedBlock& out) const {
    return Prepare(block, BlockBits(&block_bits, 1), out);
  }
  void Survey(const PreparedBlock& prepared);
  void ChooseTables();
  // The serialised tables: the part's entropy section. Empty when no block was surveyed.
  ByteSpan tables() const;
  // Appends the block's stream to out; populations receives what Decoded::populations will be. The block must
  // have been surveyed (an encoder whose tables lack a symbol is our bug: kInternal). Decodes what it wrote
  // and compares before it returns: kInternal if the stream does not give back what was prepared.
  Status Encode(const BlockChanges& block, const PreparedBlock& prepared, Bytes& out,
                std::vector<uint32_t>& populations) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Changed elements as ranks within the classes of their block's base.
struct ClassRanks {
  kernels::ClassCuts cuts;
  std::array<uint32_t, kernels::kMaxClasses> counts{};  // listed elements of each class
  std::vector<uint32_t> ranks;                          // class after class, ascending in each
  Bytes steps;                                          // likewise
};

// What a block says before it meets its base.
struct Decoded {
  uint32_t width = 0;
  bool steps = false;             // values are ordinal steps (kStep, kClass), else new bits
  std::vector<uint32_t> changed;  // ascending, distinct, < elements
  Bytes values;
  std::vector<uint32_t> uncertain;  // ascending, distinct, disjoint from changed; empty for kAbsolute
  // Per uncertain element: 0..3 = new value modulo 4 in ordinal space, within [old - 1, old + 2];
  // 0xFF = its bits stand in uncertain_bits (which has width bytes for each element).
  std::vector<uint8_t> uncertain_residue;
  Bytes uncertain_bits;
  // kClass: until Place has turned `classes` into `changed` and `values`.
  bool ranked = false;
  ClassRanks classes;
  // Known after Place; empty where a stream has no classes: elements of each class in the virtual base, and
  // what the base has at the changed positions.
  std::vector<uint32_t> populations;
  Bytes base_bits;
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

// Elements that stand above a block's base: positions ascend.
struct Overlay {
  std::span<const uint32_t> positions;
  ByteSpan bits;
};

// Finds the changed elements of a ranked block in its base, some elements of which `above` replaces. One pass
// over the base. The result is as that of a step block, with its populations.
// kWrongBase when the base has fewer elements of a class than the stream lists, or an element would stand in
// both lists. A block that is not ranked comes back as it is.
Result<Decoded> Place(const kernels::ClassTable& walk, BlockBits base, const Overlay& above,
                      const Decoded& decoded);
inline Result<Decoded> Place(const kernels::ClassTable& walk, ByteSpan base, const Overlay& above,
                             const Decoded& decoded) {
  return Place(walk, BlockBits(&base, 1), above, decoded);
}

// Turns steps and residues into new bits, given the old bits at the same positions (width bytes each; not
// read when `decoded.steps` is false). Outputs have the inputs' sizes. Total: every input is valid that is
// not ranked.
void Resolve(const Decoded& decoded, ByteSpan old_changed, ByteSpan old_uncertain,
             MutableByteSpan new_changed, MutableByteSpan new_uncertain);

}  // namespace deltawire::codec
