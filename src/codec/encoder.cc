#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <utility>

#include "codec/codec.h"
#include "codec/listing.h"
#include "codec/plain_form.h"
#include "codec/rans.h"
#include "codec/step_symbols.h"
#include "codec/table_plan.h"
#include "codec/table_section.h"
#include "codec/value_planes.h"

namespace deltawire::codec {
namespace {

constexpr unsigned kMaxWidth = 8;

void Count(std::span<const uint8_t> symbols, Histogram& histogram) {
  for (const uint8_t symbol : symbols) ++histogram[symbol];
}

unsigned WidthLog2(uint32_t width) { return static_cast<unsigned>(std::countr_zero(width)); }

// A block cut into what the coded form consists of.
struct Pieces {
  std::vector<uint8_t> changed;
  std::vector<uint8_t> escapes;
  std::vector<uint8_t> uncertain;
  std::array<std::vector<uint8_t>, kMaxWidth> planes;  // kAbsolute
  BitWriter bits;
};

Pieces Split(const Decoded& listing) {
  Pieces pieces;
  if (listing.steps) {
    SplitSteps(listing.changed, listing.values, listing.width, pieces.changed, pieces.escapes, pieces.bits);
    SplitUncertain(listing.uncertain, listing.uncertain_residue, listing.uncertain_bits, listing.width,
                   pieces.uncertain, pieces.bits);
  } else {
    SplitPositions(listing.changed, pieces.changed, pieces.bits);
    SplitValues(listing.values, listing.width, pieces.planes);
  }
  return pieces;
}

// Blocks alike in mean gap (to half an octave) share a table. Widths are told apart only where steps are
// coded: gaps don't depend on them.
uint32_t ClusterKey(const Decoded& listing, uint32_t elements) {
  const auto mean_gap = elements / static_cast<uint32_t>(listing.changed.size());
  return (listing.steps ? 64 * WidthLog2(listing.width) : 0) + ToBucket(mean_gap).bucket / 2;
}

// The least that the plain form can take: a byte a gap (or none when everything changed) and a byte a step.
uint64_t LeastPlainSize(const Decoded& listing, uint32_t elements) {
  const uint64_t count = listing.changed.size();
  const uint64_t gaps = std::min<uint64_t>(count, elements - count);
  return 1 + gaps + count * (listing.steps ? 1 : listing.width) + 2 * listing.uncertain.size();
}

struct PlainChoice {
  PlainValues values;
  uint64_t size;  // with the form byte
};
PlainChoice BestPlain(const Decoded& listing, uint32_t elements) {
  const uint64_t fixed = PlainSize(listing, elements, PlainValues::kFixed);
  if (listing.steps) {
    const uint64_t varint = PlainSize(listing, elements, PlainValues::kVarint);
    if (varint < fixed) return {PlainValues::kVarint, 1 + varint};
  }
  return {PlainValues::kFixed, 1 + fixed};
}

// About how many bits of overhead a coded block has: form, half of each state, and padding.
uint64_t CodedOverheadBits(const Decoded& listing) {
  const unsigned lanes = LaneCount(listing.changed.size() + listing.uncertain.size());
  return 8 + 20 * lanes + 4 + (listing.steps ? 0 : 8 * listing.width);
}

bool SameLists(const Decoded& a, const Decoded& b) {
  return a.width == b.width && a.steps == b.steps && a.changed == b.changed && a.values == b.values &&
         a.uncertain == b.uncertain && a.uncertain_residue == b.uncertain_residue &&
         a.uncertain_bits == b.uncertain_bits;
}

}  // namespace

struct Encoder::State {
  explicit State(Coding which) : coding(which) {}

  Coding coding;

  // Survey.
  std::map<uint32_t, Cluster> clusters;
  Histogram escapes{};
  Cluster uncertain;
  std::array<std::array<Histogram, kMaxWidth>, 4> planes{};  // by log2 of the width, then plane
  bool surveyed = false;

  // ChooseTables.
  std::map<uint32_t, unsigned> table_of_cluster;                  // absent: the plain form
  std::array<std::array<unsigned, kMaxWidth>, 4> plane_tables{};  // 0: raw
  std::vector<FrequencyTable> tables;
  std::vector<RansEncodeTable> encode_tables;
  Bytes section;
  std::optional<Decoder> decoder;

  unsigned AddTable(const FrequencyTable& table) {
    tables.push_back(table);
    return static_cast<unsigned>(tables.size()) - 1;
  }

  void ChoosePlaneTables() {
    for (unsigned log2 = 0; log2 < planes.size(); ++log2) {
      for (unsigned plane = 0; plane < 1u << log2; ++plane) {
        const Histogram& histogram = planes[log2][plane];
        uint64_t count = 0;
        for (const uint64_t n : histogram) count += n;
        if (count == 0) continue;
        const FrequencyTable table = FitTable(histogram);
        BitWriter serialised;
        WriteTable(table, serialised);
        const double coded = CodeLengthBits(histogram, table) + static_cast<double>(serialised.bit_count());
        if (coded < 8 * static_cast<double>(count)) plane_tables[log2][plane] = AddTable(table);
      }
    }
  }

  // The table id that starts the block's stream; nullopt: plain.
  std::optional<unsigned> BlockTable(const Decoded& listing, uint32_t elements) const {
    if (!listing.uncertain.empty() && tables[kUncertainTable].empty()) return std::nullopt;
    if (listing.changed.empty()) return kFirstBlockTable;
    const auto found = table_of_cluster.find(ClusterKey(listing, elements));
    if (found == table_of_cluster.end()) return std::nullopt;
    return found->second;
  }

  bool WriteCoded(const Decoded& listing, unsigned table, Bytes& out) const {
    Pieces pieces = Split(listing);
    std::vector<RansSegment> segments;
    std::vector<const std::vector<uint8_t>*> raw_planes;
    out.push_back(static_cast<uint8_t>(table));
    if (!pieces.changed.empty()) segments.push_back({&encode_tables[table], pieces.changed});
    if (listing.steps) {
      segments.push_back({&encode_tables[kEscapeTable], pieces.escapes});
      segments.push_back({&encode_tables[kUncertainTable], pieces.uncertain});
    }
    for (uint32_t plane = 0; !listing.steps && plane < listing.width; ++plane) {
      const std::vector<uint8_t>& symbols = pieces.planes[plane];
      unsigned plane_table = plane_tables[WidthLog2(listing.width)][plane];
      if (plane_table != 0) {
        Histogram histogram{};
        Count(symbols, histogram);
        // A block unlike the rest is better off raw.
        if (CodeLengthBits(histogram, tables[plane_table]) >= 8 * static_cast<double>(symbols.size())) {
          plane_table = 0;
        }
      }
      out.push_back(static_cast<uint8_t>(plane_table));
      if (plane_table != 0) {
        segments.push_back({&encode_tables[plane_table], symbols});
      } else {
        raw_planes.push_back(&symbols);
      }
    }
    const unsigned lanes = LaneCount(listing.changed.size() + listing.uncertain.size());
    if (!RansEncode(segments, lanes, out)) return false;
    for (const auto* plane : raw_planes) out.insert(out.end(), plane->begin(), plane->end());
    pieces.bits.AppendTo(out);
    return true;
  }

  // kInternal unless the stream gives the block back, down to the new bits.
  Status Check(const BlockChanges& block, const Decoded& listing, ByteSpan stream) const {
    const auto sure = static_cast<uint32_t>(listing.changed.size());
    const auto unsure = static_cast<uint32_t>(listing.uncertain.size());
    const auto back = decoder->Decode(coding, block.elements, block.width, sure, unsure, stream);
    if (!back) return Fail(Code::kInternal, "own stream does not decode: {}", back.error().message());
    bool same = SameLists(*back, listing);
    if (same && listing.steps) {
      Bytes new_bits(block.new_bits.size());
      Bytes new_uncertain(block.uncertain_new.size());
      // The true base of an uncertain element is unknown here: its residue was derived for both candidates.
      Resolve(*back, block.old_bits, block.uncertain_new, new_bits, new_uncertain);
      same = std::equal(new_bits.begin(), new_bits.end(), block.new_bits.begin(), block.new_bits.end());
    }
    if (!same) {
      return Fail(Code::kInternal,
                  "own stream of {} bytes gives other changes back ({} elements of {} bytes, {} changed, {} "
                  "uncertain)",
                  stream.size(), block.elements, block.width, sure, unsure);
    }
    return {};
  }
};

Encoder::Encoder(Coding coding) : state_(std::make_unique<State>(coding)) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

void Encoder::Survey(const BlockChanges& block) {
  State& state = *state_;
  const Decoded listing = List(state.coding, block);
  state.surveyed = true;
  if (listing.changed.empty() && listing.uncertain.empty()) return;
  const Pieces pieces = Split(listing);
  const uint64_t plain_bits = 8 * BestPlain(listing, block.elements).size;
  Count(pieces.escapes, state.escapes);
  Count(pieces.uncertain, state.uncertain.symbols);
  if (listing.changed.empty()) {
    state.uncertain.coded_bits += CodedOverheadBits(listing) + pieces.bits.bit_count();
    state.uncertain.plain_bits += plain_bits;
    return;
  }
  Cluster& cluster = state.clusters[ClusterKey(listing, block.elements)];
  Count(pieces.changed, cluster.symbols);
  // Symbols of escapes and uncertain elements have tables of their own: five bits each are near enough to
  // choose between the plain form and this one.
  cluster.coded_bits += CodedOverheadBits(listing) + pieces.bits.bit_count() +
                        5 * (pieces.escapes.size() + pieces.uncertain.size());
  cluster.plain_bits += plain_bits;
  if (!listing.steps) {
    cluster.coded_bits += 8 * listing.values.size();
    for (uint32_t plane = 0; plane < listing.width; ++plane) {
      Count(pieces.planes[plane], state.planes[WidthLog2(listing.width)][plane]);
    }
  }
}

void Encoder::ChooseTables() {
  State& state = *state_;
  std::vector<Cluster> clusters;
  for (const auto& [key, cluster] : state.clusters) clusters.push_back(cluster);
  const TablePlan plan = PlanTables(clusters);
  const TablePlan uncertain = PlanTables({&state.uncertain, 1});
  const bool coded = !plan.tables.empty();
  const bool any_coded = coded || !uncertain.tables.empty();
  // Blocks with a table of their own need these two as well.
  state.AddTable(coded ? FitTable(state.escapes) : FrequencyTable{});
  state.AddTable(any_coded ? FitTable(state.uncertain.symbols) : FrequencyTable{});
  for (const FrequencyTable& table : plan.tables) state.AddTable(table);
  size_t index = 0;
  for (const auto& [key, cluster] : state.clusters) {
    const uint32_t table = plan.table_of[index++];
    if (table != kNoTable) state.table_of_cluster[key] = kFirstBlockTable + table;
  }
  if (coded) state.ChoosePlaneTables();
  for (const FrequencyTable& table : state.tables) state.encode_tables.emplace_back(table);
  if (state.surveyed) state.section = any_coded ? WriteTables(state.tables) : Bytes{0};
  auto opened = Decoder::Open(state.section);
  if (opened) state.decoder = std::move(*opened);
}

ByteSpan Encoder::tables() const { return state_->section; }

Status Encoder::Encode(const BlockChanges& block, Bytes& out) const {
  const State& state = *state_;
  if (!state.decoder) return Fail(Code::kInternal, "encode before tables were chosen, or they don't parse");
  const Decoded listing = List(state.coding, block);
  if (listing.changed.empty() && listing.uncertain.empty()) return {};
  const size_t start = out.size();
  const auto table = state.BlockTable(listing, block.elements);
  if (table && !state.WriteCoded(listing, *table, out)) {
    out.resize(start);
    return Fail(Code::kInternal, "the tables lack a symbol of this block: it was not surveyed");
  }
  const uint64_t coded_size = out.size() - start;
  if (!table || coded_size > LeastPlainSize(listing, block.elements)) {
    const PlainChoice plain = BestPlain(listing, block.elements);
    if (!table || plain.size < coded_size) {
      out.resize(start);
      out.push_back(static_cast<uint8_t>(plain.values));
      WritePlain(listing, block.elements, plain.values, out);
    }
  }
  Status checked = state.Check(block, listing, ByteSpan(out).subspan(start));
  if (!checked) out.resize(start);
  return checked;
}

}  // namespace deltawire::codec
