#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/hash.h"
#include "codec/bucket.h"
#include "codec/class_statistics.h"
#include "codec/codec.h"
#include "codec/listing.h"
#include "codec/ordinal.h"
#include "codec/pieces.h"
#include "codec/plain_form.h"
#include "codec/rans.h"
#include "codec/table_plan.h"
#include "codec/table_section.h"
#include "codec/varint.h"

namespace deltawire::codec {
namespace {

constexpr unsigned kWidths = 4;

void Count(std::span<const uint8_t> symbols, Histogram& histogram) {
  for (const uint8_t symbol : symbols) ++histogram[symbol];
}

unsigned WidthLog2(uint32_t width) { return static_cast<unsigned>(std::countr_zero(width)); }

// Blocks alike in mean gap (to half an octave) share a table. Widths are told apart only where steps are
// coded: gaps don't depend on them.
uint32_t GapKey(const Pieces& pieces, Coding coding) {
  const uint32_t mean_gap = pieces.elements / pieces.changed;
  return (coding == Coding::kAbsolute ? 0 : 64 * WidthLog2(pieces.width)) + ToBucket(mean_gap).bucket / 2;
}

// The least that a plain form can take: a bit an element or a byte a gap (or none when everything changed),
// and a byte a step.
uint64_t LeastPlainSize(const Pieces& pieces, bool steps) {
  const uint64_t count = pieces.changed;
  const uint64_t gaps = std::min({count, pieces.elements - count, (uint64_t{pieces.elements} + 7) / 8});
  return 1 + gaps + count * (steps ? 1 : pieces.width) + 2 * uint64_t{pieces.uncertain};
}

// About how many bits of overhead a coded block has: form, half of each state, and padding.
uint64_t CodedOverheadBits(const Pieces& pieces, Coding coding) {
  const unsigned lanes = LaneCount(uint64_t{pieces.changed} + pieces.uncertain);
  const uint64_t head = coding == Coding::kAbsolute ? 8 * pieces.width
                        : coding == Coding::kClass  ? 10 * (pieces.classes - 1)
                                                    : 0;
  return 8 + 20 * lanes + 4 + head;
}

bool SameLists(const Decoded& a, const Decoded& b) {
  return a.width == b.width && a.steps == b.steps && a.changed == b.changed && a.values == b.values &&
         a.uncertain == b.uncertain && a.uncertain_residue == b.uncertain_residue &&
         a.uncertain_bits == b.uncertain_bits;
}

// kClass: blocks of one width whose density is alike, relative to what their classes let expect (to an
// octave).
struct GroupKey {
  unsigned width_log2;
  int excess;

  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};
struct Group {
  std::array<Cluster, kernels::kMaxClasses> classes;
  std::array<uint64_t, kernels::kMaxClasses> populations{};
  std::array<uint64_t, kernels::kMaxClasses> counts{};
  uint64_t coded_bits = 0;
  uint64_t plain_bits = 0;
};

}  // namespace

PreparedBlock::PreparedBlock() = default;
PreparedBlock::~PreparedBlock() = default;
PreparedBlock::PreparedBlock(PreparedBlock&&) noexcept = default;
PreparedBlock& PreparedBlock::operator=(PreparedBlock&&) noexcept = default;

struct Encoder::State {
  State(Coding which, const kernels::ClassTable* table) : coding(which), walk(table) {}

  const Coding coding;
  const kernels::ClassTable* const walk;

  // ChooseClasses, by log2 of the width.
  std::array<ClassStatistics, kWidths> statistics;
  std::array<kernels::ClassCuts, kWidths> cuts{};
  std::array<std::array<double, kernels::kMaxClasses>, kWidths> rates{};

  // Survey.
  std::map<uint32_t, Cluster> clusters;
  std::map<GroupKey, Group> groups;
  Histogram escapes{};
  Cluster uncertain;
  std::array<std::array<Histogram, kMaxWidth>, kWidths> planes{};
  bool surveyed = false;

  // ChooseTables.
  std::map<uint32_t, unsigned> table_of_cluster;                        // absent: the plain form
  std::map<GroupKey, unsigned> profile_of_group;                        // likewise
  std::array<std::array<unsigned, kMaxWidth>, kWidths> plane_tables{};  // 0: raw
  TableSection section;
  std::vector<RansEncodeTable> encode_tables;
  Bytes section_bytes;
  std::optional<Decoder> decoder;

  unsigned AddTable(const FrequencyTable& table) {
    section.tables.push_back(table);
    return static_cast<unsigned>(section.tables.size()) - 1;
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

  GroupKey KeyOf(const Pieces& pieces) const {
    const unsigned log2 = WidthLog2(pieces.width);
    double expected = 0;
    for (uint32_t c = 0; c < pieces.classes; ++c) expected += pieces.populations[c] * rates[log2][c];
    const double ratio = pieces.changed / std::max(expected, 1e-3);
    return {log2, std::clamp(static_cast<int>(std::lround(std::log2(ratio))), -4, 4)};
  }

  // One width: each (group, class) that lists something is a cluster; those alike in mean gap are neighbours.
  struct Candidate {
    GroupKey group;
    uint32_t c;
    double mean_gap;
  };
  void ChooseProfiles(unsigned log2) {
    std::vector<Candidate> candidates;
    uint64_t coded_bits = 0;
    uint64_t plain_bits = 0;
    for (const auto& [key, group] : groups) {
      if (key.width_log2 != log2) continue;
      coded_bits += group.coded_bits;
      plain_bits += group.plain_bits;
      for (uint32_t c = 0; c < cuts[log2].classes; ++c) {
        if (group.counts[c] == 0) continue;
        const double gap = static_cast<double>(group.populations[c]) / static_cast<double>(group.counts[c]);
        candidates.push_back({key, c, gap});
      }
    }
    if (candidates.empty()) return;
    // Equal ones in the order of their groups, so that the bytes are the same everywhere.
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return std::tie(a.mean_gap, a.group, a.c) < std::tie(b.mean_gap, b.group, b.c);
    });
    std::vector<Cluster> clusters_by_gap;
    for (const Candidate& candidate : candidates) {
      clusters_by_gap.push_back(groups.at(candidate.group).classes[candidate.c]);
      clusters_by_gap.back().plain_bits = uint64_t{1} << 50;  // the choice is made for all of them together
    }
    const TablePlan plan = PlanTables(clusters_by_gap);
    double total = static_cast<double>(coded_bits);
    std::vector<Histogram> merged(plan.tables.size());
    for (size_t i = 0; i < candidates.size(); ++i) {
      Histogram& into = merged[plan.table_of[i]];
      for (size_t s = 0; s < into.size(); ++s) into[s] += clusters_by_gap[i].symbols[s];
    }
    for (size_t i = 0; i < merged.size(); ++i) {
      BitWriter serialised;
      WriteTable(plan.tables[i], serialised);
      total += CodeLengthBits(merged[i], plan.tables[i]) + static_cast<double>(serialised.bit_count());
    }
    total += 8 * (1 + 2.0 * cuts[log2].classes);
    const size_t tables = std::max<size_t>(section.tables.size(), kFirstBlockTable) + plan.tables.size();
    if (total >= static_cast<double>(plain_bits) || tables > kMaxTables) return;
    if (section.tables.empty()) {
      AddTable(FitTable(escapes));
      AddTable(FitTable(uncertain.symbols));
    }
    const size_t first = section.tables.size();
    for (const FrequencyTable& table : plan.tables) AddTable(table);
    std::map<GroupKey, Profile> profiles;
    for (size_t i = 0; i < candidates.size(); ++i) {
      Profile& profile = profiles[candidates[i].group];
      profile.cuts = cuts[log2];
      profile.table[candidates[i].c] = static_cast<uint8_t>(first + plan.table_of[i]);
    }
    for (const auto& [key, profile] : profiles) {
      profile_of_group[key] = static_cast<unsigned>(section.profiles.size());
      section.profiles.push_back(profile);
    }
  }

  // The first byte of the coded form; nullopt: there is none.
  std::optional<unsigned> CodedForm(const Pieces& pieces) const {
    const auto& tables = section.tables;
    if (pieces.uncertain > 0 && (tables.size() <= kUncertainTable || tables[kUncertainTable].empty())) {
      return std::nullopt;
    }
    if (pieces.changed == 0) return kFirstCodedForm;
    if (coding == Coding::kClass) {
      const auto found = profile_of_group.find(KeyOf(pieces));
      if (found == profile_of_group.end()) return std::nullopt;
      return kFirstCodedForm + found->second;
    }
    const auto found = table_of_cluster.find(GapKey(pieces, coding));
    if (found == table_of_cluster.end()) return std::nullopt;
    return found->second;
  }

  bool WriteCoded(const Pieces& pieces, unsigned form, Bytes& out) const {
    std::vector<RansSegment> segments;
    std::vector<const std::vector<uint8_t>*> raw_planes;
    out.push_back(static_cast<uint8_t>(form));
    const std::span<const uint8_t> symbols = pieces.symbols;
    if (coding == Coding::kClass && pieces.changed > 0) {
      const Profile& profile = section.profiles[form - kFirstCodedForm];
      size_t at = 0;
      for (uint32_t c = 0; c < pieces.classes; ++c) {
        if (c > 0) PutVarint(pieces.counts[c], out);
        if (pieces.counts[c] == 0) continue;
        if (profile.table[c] < kFirstBlockTable) return false;
        segments.push_back({&encode_tables[profile.table[c]], symbols.subspan(at, pieces.counts[c])});
        at += pieces.counts[c];
      }
    } else if (!symbols.empty()) {
      segments.push_back({&encode_tables[form], symbols});
    }
    if (coding == Coding::kAbsolute) {
      for (uint32_t plane = 0; plane < pieces.width; ++plane) {
        const std::vector<uint8_t>& values = pieces.planes[plane];
        unsigned plane_table = plane_tables[WidthLog2(pieces.width)][plane];
        if (plane_table != 0) {
          Histogram histogram{};
          Count(values, histogram);
          // A block unlike the rest is better off raw.
          if (CodeLengthBits(histogram, section.tables[plane_table]) >=
              8 * static_cast<double>(values.size())) {
            plane_table = 0;
          }
        }
        out.push_back(static_cast<uint8_t>(plane_table));
        if (plane_table != 0) {
          segments.push_back({&encode_tables[plane_table], values});
        } else {
          raw_planes.push_back(&values);
        }
      }
    } else {
      segments.push_back({&encode_tables[kEscapeTable], pieces.escapes});
      segments.push_back({&encode_tables[kUncertainTable], pieces.unsure});
    }
    const unsigned lanes = LaneCount(uint64_t{pieces.changed} + pieces.uncertain);
    if (!RansEncode(segments, lanes, out)) return false;
    for (const auto* plane : raw_planes) out.insert(out.end(), plane->begin(), plane->end());
    pieces.bits.AppendTo(out);
    return true;
  }

  // kInternal unless the stream gives the block back, down to the new bits.
  Status Check(const BlockChanges& block, const Pieces& pieces, ByteSpan stream) const {
    const auto back =
        decoder->Decode(coding, block.elements, block.width, pieces.changed, pieces.uncertain, stream);
    if (!back) return Fail(Code::kInternal, "own stream does not decode: {}", back.error().message());
    bool same;
    if (back->ranked) {
      const Decoded listing = ListUncertain(block);
      same = HashOf(back->classes.ranks) == pieces.ranks_hash &&
             Xxh3_64(back->classes.steps) == pieces.steps_hash && back->uncertain == listing.uncertain &&
             back->uncertain_residue == listing.uncertain_residue &&
             back->uncertain_bits == listing.uncertain_bits;
    } else {
      same = SameLists(*back, List(coding, block));
    }
    if (same && back->steps && !back->ranked) {
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
                  stream.size(), block.elements, block.width, pieces.changed, pieces.uncertain);
    }
    return {};
  }
};

Encoder::Encoder(Coding coding, const kernels::ClassTable* walk)
    : state_(std::make_unique<State>(coding, walk)) {}
Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

void Encoder::SampleBase(uint32_t width, uint32_t elements, ByteSpan some) {
  state_->statistics[WidthLog2(width)].AddSample(width, elements, some);
}

void Encoder::SampleChanges(const BlockChanges& block) {
  state_->statistics[WidthLog2(block.width)].AddChanges(block);
}

void Encoder::ChooseClasses(uint32_t most) {
  for (unsigned log2 = 0; log2 < kWidths; ++log2) {
    const ClassStatistics& statistics = state_->statistics[log2];
    state_->cuts[log2] = statistics.Choose(std::clamp(most, 1u, kernels::kMaxClasses));
    state_->rates[log2] = statistics.Rates(state_->cuts[log2]);
  }
}

Status Encoder::Prepare(const BlockChanges& block, BlockBits block_bits, PreparedBlock& out) const {
  const State& state = *state_;
  out.pieces_ = std::make_unique<Pieces>();
  Pieces& pieces = *out.pieces_;
  const Decoded listing = List(state.coding, block);
  pieces.elements = block.elements;
  pieces.width = block.width;
  pieces.changed = static_cast<uint32_t>(listing.changed.size());
  pieces.uncertain = static_cast<uint32_t>(listing.uncertain.size());
  if (pieces.changed + pieces.uncertain == 0) return {};
  pieces.plain_size = BestPlain(listing, block.elements).size;
  if (state.coding != Coding::kClass) {
    Split(listing, pieces);
    return {};
  }
  const kernels::ClassCuts& cuts = state.cuts[WidthLog2(block.width)];
  uint64_t bytes = 0;
  bool whole = true;
  for (const ByteSpan piece : block_bits) {
    bytes += piece.size();
    whole &= piece.size() % block.width == 0;
  }
  if (bytes != uint64_t{block.elements} * block.width || !whole) {
    return Fail(Code::kInvalidArgument,
                "class coding of a block of {} elements of {} bytes needs all its bits, {} bytes were given "
                "in {} pieces{}",
                block.elements, block.width, bytes, block_bits.size(),
                whole ? "" : ", one of them not a whole number of elements");
  }
  SplitByClass(*state.walk, cuts, block, listing, block_bits, pieces);
  return {};
}

void Encoder::Survey(const PreparedBlock& prepared) {
  State& state = *state_;
  const Pieces& pieces = *prepared.pieces_;
  state.surveyed = true;
  if (pieces.changed + pieces.uncertain == 0) return;
  const uint64_t plain_bits = 8 * pieces.plain_size;
  // Symbols of escapes and uncertain elements have tables of their own: five bits each are near enough to
  // choose between the plain form and this one.
  const uint64_t coded_bits = CodedOverheadBits(pieces, state.coding) + pieces.bits.bit_count();
  const uint64_t shared_bits = 5 * (pieces.escapes.size() + pieces.unsure.size());
  Count(pieces.escapes, state.escapes);
  Count(pieces.unsure, state.uncertain.symbols);
  if (pieces.changed == 0) {
    state.uncertain.coded_bits += coded_bits;
    state.uncertain.plain_bits += plain_bits;
    return;
  }
  if (state.coding == Coding::kClass) {
    Group& group = state.groups[state.KeyOf(pieces)];
    group.coded_bits += coded_bits + shared_bits;
    group.plain_bits += plain_bits;
    size_t at = 0;
    for (uint32_t c = 0; c < pieces.classes; ++c) {
      Count(std::span(pieces.symbols).subspan(at, pieces.counts[c]), group.classes[c].symbols);
      at += pieces.counts[c];
      group.counts[c] += pieces.counts[c];
      group.populations[c] += pieces.populations[c];
    }
    return;
  }
  Cluster& cluster = state.clusters[GapKey(pieces, state.coding)];
  Count(pieces.symbols, cluster.symbols);
  cluster.coded_bits += coded_bits + shared_bits;
  cluster.plain_bits += plain_bits;
  if (state.coding == Coding::kAbsolute) {
    cluster.coded_bits += 8 * uint64_t{pieces.width} * pieces.changed;
    for (uint32_t plane = 0; plane < pieces.width; ++plane) {
      Count(pieces.planes[plane], state.planes[WidthLog2(pieces.width)][plane]);
    }
  }
}

void Encoder::ChooseTables() {
  State& state = *state_;
  const TablePlan uncertain = PlanTables({&state.uncertain, 1});
  if (state.coding == Coding::kClass) {
    for (unsigned log2 = 0; log2 < kWidths; ++log2) state.ChooseProfiles(log2);
    if (state.section.tables.empty() && !uncertain.tables.empty()) {
      state.AddTable({});
      state.AddTable(uncertain.tables[0]);
    }
  } else {
    std::vector<Cluster> clusters;
    for (const auto& [key, cluster] : state.clusters) clusters.push_back(cluster);
    const TablePlan plan = PlanTables(clusters);
    const bool coded = !plan.tables.empty();
    if (coded || !uncertain.tables.empty()) {
      // Blocks with a table of their own need these two as well.
      state.AddTable(coded ? FitTable(state.escapes) : FrequencyTable{});
      state.AddTable(FitTable(state.uncertain.symbols));
    }
    for (const FrequencyTable& table : plan.tables) state.AddTable(table);
    size_t index = 0;
    for (const auto& [key, cluster] : state.clusters) {
      const uint32_t table = plan.table_of[index++];
      if (table != kNoTable) state.table_of_cluster[key] = kFirstBlockTable + table;
    }
    if (coded && state.coding == Coding::kAbsolute) state.ChoosePlaneTables();
  }
  for (const FrequencyTable& table : state.section.tables) state.encode_tables.emplace_back(table);
  // Without tables the section is empty: every block is plain.
  if (!state.section.tables.empty()) state.section_bytes = WriteTables(state.section);
  auto opened = Decoder::Open(state.section_bytes);
  if (opened) state.decoder = std::move(*opened);
}

ByteSpan Encoder::tables() const { return state_->section_bytes; }

Status Encoder::Encode(const BlockChanges& block, const PreparedBlock& prepared, Bytes& out,
                       std::vector<uint32_t>& populations) const {
  const State& state = *state_;
  populations.clear();
  if (!state.decoder || !prepared.pieces_) {
    return Fail(Code::kInternal,
                "encode before the block was prepared and tables chosen, or they don't parse");
  }
  const Pieces& pieces = *prepared.pieces_;
  if (pieces.changed + pieces.uncertain == 0) return {};
  const size_t start = out.size();
  const auto form = state.CodedForm(pieces);
  if (form && !state.WriteCoded(pieces, *form, out)) {
    out.resize(start);
    return Fail(Code::kInternal, "the tables lack a symbol of this block: it was not surveyed");
  }
  bool coded = form.has_value();
  if (!coded || out.size() - start > LeastPlainSize(pieces, state.coding != Coding::kAbsolute)) {
    const Decoded listing = List(state.coding, block);
    const PlainChoice plain = BestPlain(listing, block.elements);
    if (!coded || plain.size < out.size() - start) {
      out.resize(start);
      WritePlain(listing, block.elements, plain.form, out);
      coded = false;
    }
  }
  if (coded && state.coding == Coding::kClass && pieces.changed > 0) {
    populations.assign(pieces.populations.begin(), pieces.populations.begin() + pieces.classes);
  }
  Status checked = state.Check(block, pieces, ByteSpan(out).subspan(start));
  if (!checked) out.resize(start);
  return checked;
}

}  // namespace deltawire::codec
