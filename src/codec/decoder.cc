#include <algorithm>
#include <array>
#include <utility>

#include "codec/codec.h"
#include "codec/listing.h"
#include "codec/ordinal.h"
#include "codec/plain_form.h"
#include "codec/rans.h"
#include "codec/step_symbols.h"
#include "codec/table_section.h"
#include "codec/value_planes.h"
#include "tensor/shape.h"

namespace deltawire::codec {
namespace {

// A stream names its tables; the alphabet bounds what symbols they can give.
struct OpenTable {
  unsigned alphabet = 0;
  std::unique_ptr<RansDecodeTable> table;  // null when the alphabet is empty
};

struct Shape {
  uint32_t elements;
  uint32_t width;
  uint32_t changed;
  uint32_t uncertain;
};

class StreamReader {
 public:
  StreamReader(std::span<const OpenTable> tables, const Shape& shape, ByteSpan stream)
      : tables_(tables), shape_(shape), stream_(stream) {}

  Result<Decoded> ReadSteps() {
    const unsigned head = stream_[0];
    const bool listed = shape_.changed > 0;
    if (!listed && head != kFirstBlockTable) {
      return Corrupt(
          fmt::format("form {}, expected {} where nothing is certainly changed", head, kFirstBlockTable));
    }
    Decoded out;
    out.width = shape_.width;
    out.steps = true;
    DELTAWIRE_TRY(StartRans(1));
    std::vector<uint8_t> symbols;
    std::vector<uint8_t> escapes;
    std::vector<uint8_t> uncertain;
    if (listed) {
      DELTAWIRE_TRY(ReadSymbols(head, kStepSymbols, shape_.changed, symbols));
      const auto escape_count = std::count_if(symbols.begin(), symbols.end(),
                                              [](uint8_t symbol) { return symbol >= kEscape * kGapBuckets; });
      if (escape_count > 0) {
        DELTAWIRE_TRY(
            ReadSymbols(kEscapeTable, kMagnitudeBuckets, static_cast<size_t>(escape_count), escapes));
      }
    }
    if (shape_.uncertain > 0) {
      DELTAWIRE_TRY(ReadSymbols(kUncertainTable, kUncertainSymbols, shape_.uncertain, uncertain));
    }
    DELTAWIRE_TRY(EndRans());
    BitReader bits(rans_.rest());
    out.changed.resize(shape_.changed);
    out.values.resize(size_t{shape_.changed} * shape_.width);
    if (!JoinSteps(symbols, escapes, shape_.elements, shape_.width, bits, out.changed, out.values)) {
      return Corrupt("a changed position lies outside the block or a step has a second spelling");
    }
    out.uncertain.resize(shape_.uncertain);
    out.uncertain_residue.resize(shape_.uncertain);
    out.uncertain_bits.resize(size_t{shape_.uncertain} * shape_.width);
    if (!JoinUncertain(uncertain, shape_.elements, shape_.width, bits, out.uncertain, out.uncertain_residue,
                       out.uncertain_bits)) {
      return Corrupt("an uncertain position lies outside the block");
    }
    if (!bits.UsedUpExactly()) return Corrupt("raw bits are missing or left over");
    if (Intersect(out.uncertain, out.changed)) return Corrupt("an element stands in both lists");
    return out;
  }

  Result<Decoded> ReadAbsolute() {
    Decoded out;
    out.width = shape_.width;
    const size_t count = shape_.changed;
    DELTAWIRE_TRY(StartRans(1 + shape_.width));
    std::vector<uint8_t> gaps;
    DELTAWIRE_TRY(ReadSymbols(stream_[0], kGapBuckets, count, gaps));
    std::array<std::vector<uint8_t>, 8> coded;
    std::array<const uint8_t*, 8> planes{};
    for (uint32_t plane = 0; plane < shape_.width; ++plane) {
      const unsigned table = stream_[1 + plane];
      if (table == 0) continue;
      DELTAWIRE_TRY(ReadSymbols(table, kMaxSymbols, count, coded[plane]));
      planes[plane] = coded[plane].data();
    }
    DELTAWIRE_TRY(EndRans());
    ByteSpan rest = rans_.rest();
    for (uint32_t plane = 0; plane < shape_.width; ++plane) {
      if (planes[plane] != nullptr) continue;
      if (rest.size() < count) return Corrupt("a raw byte plane is cut off");
      planes[plane] = rest.data();
      rest = rest.subspan(count);
    }
    BitReader bits(rest);
    out.changed.resize(count);
    if (!JoinPositions(gaps, shape_.elements, bits, out.changed)) {
      return Corrupt("a changed position lies outside the block");
    }
    if (!bits.UsedUpExactly()) return Corrupt("raw bits are missing or left over");
    out.values.resize(count * shape_.width);
    JoinValues(planes, shape_.width, out.values);
    return out;
  }

  tl::unexpected<Error> Corrupt(std::string_view what) const {
    return Fail(Code::kCorrupt, "stream of {} bytes ({} elements of {} bytes, {} changed, {} uncertain): {}",
                stream_.size(), shape_.elements, shape_.width, shape_.changed, shape_.uncertain, what);
  }

 private:
  Status StartRans(size_t at) {
    const uint64_t entries = uint64_t{shape_.changed} + shape_.uncertain;
    if (stream_.size() < at || !rans_.Start(stream_.subspan(at), LaneCount(entries))) {
      return Corrupt("the coder's states are cut off or out of range");
    }
    return {};
  }

  Status ReadSymbols(unsigned table, unsigned alphabet, size_t count, std::vector<uint8_t>& symbols) {
    if (table >= tables_.size() || tables_[table].alphabet == 0 || tables_[table].alphabet > alphabet) {
      return Corrupt(fmt::format("table {} is missing or has symbols above {}", table, alphabet - 1));
    }
    symbols.resize(count);
    if (!rans_.Decode(*tables_[table].table, symbols)) return Corrupt("the coder's words ran out");
    return {};
  }

  Status EndRans() const {
    if (!rans_.AtEnd()) return Corrupt("the coder does not end where it started");
    return {};
  }

  std::span<const OpenTable> tables_;
  Shape shape_;
  ByteSpan stream_;
  RansDecoder rans_;
};

}  // namespace

struct Decoder::State {
  std::vector<OpenTable> tables;
};

Decoder::Decoder(std::unique_ptr<State> state) : state_(std::move(state)) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Result<Decoder> Decoder::Open(ByteSpan tables) {
  DELTAWIRE_ASSIGN(const auto parsed, ReadTables(tables));
  auto state = std::make_unique<State>();
  for (const FrequencyTable& table : parsed) {
    OpenTable open{table.alphabet(), nullptr};
    if (open.alphabet > 0) open.table = std::make_unique<RansDecodeTable>(table);
    state->tables.push_back(std::move(open));
  }
  return Decoder(std::move(state));
}

Result<Decoded> Decoder::Decode(Coding coding, uint32_t elements, uint32_t width, uint32_t changed,
                                uint32_t uncertain, ByteSpan stream) const {
  if ((coding != Coding::kAbsolute && coding != Coding::kStep) || !IsWidth(width) ||
      elements > kMaxBlockElements || uint64_t{changed} + uncertain > elements) {
    return Fail(Code::kCorrupt,
                "block of coding {}, {} elements of {} bytes, {} changed, {} uncertain; expected coding 1 or "
                "2, at most {} elements of 1, 2, 4 or 8 bytes, and no more entries than elements",
                static_cast<unsigned>(coding), elements, width, changed, uncertain, kMaxBlockElements);
  }
  const bool steps = coding == Coding::kStep;
  if (!steps) changed += std::exchange(uncertain, 0);
  const Shape shape{elements, width, changed, uncertain};
  StreamReader reader(state_->tables, shape, stream);
  if (changed + uncertain == 0) {
    if (!stream.empty()) return reader.Corrupt("expected no bytes");
    Decoded nothing;
    nothing.width = width;
    nothing.steps = steps;
    return nothing;
  }
  if (stream.empty()) return reader.Corrupt("expected at least the form");
  const uint8_t head = stream[0];
  if (head >= kFirstBlockTable) return steps ? reader.ReadSteps() : reader.ReadAbsolute();
  const auto values = static_cast<PlainValues>(head);
  if (values == PlainValues::kVarint && !steps) return reader.Corrupt("form 1 is for steps only");
  return ReadPlain(values, steps, elements, width, changed, uncertain, stream.subspan(1));
}

}  // namespace deltawire::codec
