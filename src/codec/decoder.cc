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
#include "codec/varint.h"
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
  StreamReader(std::span<const OpenTable> tables, std::span<const Profile> profiles, const Shape& shape,
               ByteSpan stream)
      : tables_(tables), profiles_(profiles), shape_(shape), stream_(stream) {}

  // kStep is kClass with one class that is never looked for: ranks are positions.
  Result<Decoded> ReadSteps(bool by_class) {
    const unsigned head = stream_[0];
    const bool listed = shape_.changed > 0;
    if (!listed && head != kFirstCodedForm) {
      return Corrupt(
          fmt::format("form {}, expected {} where nothing is certainly changed", head, kFirstCodedForm));
    }
    Decoded out;
    out.width = shape_.width;
    out.steps = true;
    Profile profile;
    profile.table[0] = static_cast<uint8_t>(head);
    ClassRanks& classes = out.classes;
    classes.counts[0] = shape_.changed;
    size_t start = 1;
    if (by_class && listed) {
      if (head - kFirstCodedForm >= profiles_.size())
        return Corrupt(fmt::format("profile {} is missing", head));
      profile = profiles_[head - kFirstCodedForm];
      DELTAWIRE_TRY(ReadCounts(profile.cuts.classes, classes, start));
      classes.cuts = profile.cuts;
      out.ranked = true;
    }
    DELTAWIRE_TRY(StartRans(start));
    std::vector<uint8_t> symbols(shape_.changed);
    std::array<size_t, kernels::kMaxClasses> escapes_of{};
    size_t escape_count = 0;
    size_t at = 0;
    for (uint32_t c = 0; c < profile.cuts.classes; ++c) {
      const uint32_t count = classes.counts[c];
      if (count == 0) continue;
      const auto mine = std::span(symbols).subspan(at, count);
      if (profile.table[c] < kFirstBlockTable) return Corrupt(fmt::format("class {} has no table", c));
      DELTAWIRE_TRY(ReadSymbols(profile.table[c], kStepSymbols, mine));
      escapes_of[c] = static_cast<size_t>(std::count_if(
          mine.begin(), mine.end(), [](uint8_t symbol) { return symbol >= kEscape * kGapBuckets; }));
      escape_count += escapes_of[c];
      at += count;
    }
    std::vector<uint8_t> escapes(escape_count);
    if (escape_count > 0) DELTAWIRE_TRY(ReadSymbols(kEscapeTable, kMagnitudeBuckets, escapes));
    std::vector<uint8_t> uncertain(shape_.uncertain);
    if (shape_.uncertain > 0) DELTAWIRE_TRY(ReadSymbols(kUncertainTable, kUncertainSymbols, uncertain));
    DELTAWIRE_TRY(EndRans());

    BitReader bits(rans_.rest());
    std::vector<uint32_t>& ranks = out.ranked ? classes.ranks : out.changed;
    Bytes& steps = out.ranked ? classes.steps : out.values;
    ranks.resize(shape_.changed);
    steps.resize(size_t{shape_.changed} * shape_.width);
    at = 0;
    size_t escape_at = 0;
    for (uint32_t c = 0; c < profile.cuts.classes; ++c) {
      const size_t count = classes.counts[c];
      if (!JoinSteps(std::span(symbols).subspan(at, count),
                     std::span(escapes).subspan(escape_at, escapes_of[c]), shape_.elements, shape_.width,
                     bits, std::span(ranks).subspan(at, count),
                     std::span(steps).subspan(at * shape_.width, count * shape_.width))) {
        return Corrupt("a changed position lies outside the block or a step has a second spelling");
      }
      at += count;
      escape_at += escapes_of[c];
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
    std::vector<uint8_t> gaps(count);
    DELTAWIRE_TRY(ReadSymbols(stream_[0], kGapBuckets, gaps));
    std::array<std::vector<uint8_t>, 8> coded;
    std::array<const uint8_t*, 8> planes{};
    for (uint32_t plane = 0; plane < shape_.width; ++plane) {
      const unsigned table = stream_[1 + plane];
      if (table == 0) continue;
      coded[plane].resize(count);
      DELTAWIRE_TRY(ReadSymbols(table, kMaxSymbols, coded[plane]));
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

  // The first class takes what the others leave.
  Status ReadCounts(uint32_t classes, ClassRanks& out, size_t& at) {
    VarintReader in(stream_.subspan(at));
    for (uint32_t c = 1; c < classes; ++c) {
      const auto count = in.Varint(out.counts[0]);
      if (!count) return Corrupt("the classes' counts are cut off or exceed the changed elements");
      out.counts[c] = static_cast<uint32_t>(*count);
      out.counts[0] -= out.counts[c];
    }
    at = stream_.size() - in.rest().size();
    return {};
  }

  Status ReadSymbols(unsigned table, unsigned alphabet, std::span<uint8_t> symbols) {
    if (table >= tables_.size() || tables_[table].alphabet == 0 || tables_[table].alphabet > alphabet) {
      return Corrupt(fmt::format("table {} is missing or has symbols above {}", table, alphabet - 1));
    }
    if (!rans_.Decode(*tables_[table].table, symbols)) return Corrupt("the coder's words ran out");
    return {};
  }

  Status EndRans() const {
    if (!rans_.AtEnd()) return Corrupt("the coder does not end where it started");
    return {};
  }

  std::span<const OpenTable> tables_;
  std::span<const Profile> profiles_;
  Shape shape_;
  ByteSpan stream_;
  RansDecoder rans_;
};

}  // namespace

struct Decoder::State {
  std::vector<OpenTable> tables;
  std::vector<Profile> profiles;
};

Decoder::Decoder(std::unique_ptr<State> state) : state_(std::move(state)) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Result<Decoder> Decoder::Open(ByteSpan tables) {
  DELTAWIRE_ASSIGN(TableSection parsed, ReadTables(tables));
  auto state = std::make_unique<State>();
  state->profiles = std::move(parsed.profiles);
  for (const FrequencyTable& table : parsed.tables) {
    OpenTable open{table.alphabet(), nullptr};
    if (open.alphabet > 0) open.table = std::make_unique<RansDecodeTable>(table);
    state->tables.push_back(std::move(open));
  }
  return Decoder(std::move(state));
}

Result<Decoded> Decoder::Decode(Coding coding, uint32_t elements, uint32_t width, uint32_t changed,
                                uint32_t uncertain, ByteSpan stream) const {
  if (coding == Coding::kDense || coding > Coding::kClass || !IsWidth(width) ||
      elements > kMaxBlockElements || uint64_t{changed} + uncertain > elements) {
    return Fail(Code::kCorrupt,
                "block of coding {}, {} elements of {} bytes, {} changed, {} uncertain; expected coding "
                "1, 2 or 3, at most {} elements of 1, 2, 4 or 8 bytes, and no more entries than elements",
                static_cast<unsigned>(coding), elements, width, changed, uncertain, kMaxBlockElements);
  }
  const bool steps = coding != Coding::kAbsolute;
  if (!steps) changed += std::exchange(uncertain, 0);
  const Shape shape{elements, width, changed, uncertain};
  StreamReader reader(state_->tables, state_->profiles, shape, stream);
  if (changed + uncertain == 0) {
    if (!stream.empty()) return reader.Corrupt("expected no bytes");
    Decoded nothing;
    nothing.width = width;
    nothing.steps = steps;
    return nothing;
  }
  if (stream.empty()) return reader.Corrupt("expected at least the form");
  const auto plain = PlainFormOf(stream[0]);
  if (!plain) return steps ? reader.ReadSteps(coding == Coding::kClass) : reader.ReadAbsolute();
  if (plain->varints && !steps) return reader.Corrupt("varints are for steps only");
  return ReadPlain(*plain, steps, elements, width, changed, uncertain, stream.subspan(1));
}

}  // namespace deltawire::codec
