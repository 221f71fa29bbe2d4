// Which blocks share an entropy table: greedy merging of clusters while a table costs more than it saves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/frequency_table.h"

namespace deltawire::codec {

// Statistics of the blocks of one kind.
struct Cluster {
  Histogram symbols{};
  uint64_t coded_bits = 0;  // of the coded form beside the symbols
  uint64_t plain_bits = 0;  // of the plain form, everything
};

struct TablePlan {
  std::vector<FrequencyTable> tables;
  // For each cluster an index into tables, or kNoTable where the plain form is smaller.
  std::vector<uint32_t> table_of;
};
inline constexpr uint32_t kNoTable = ~0u;

// Clusters stand in the order of their likeness: only neighbours are merged.
TablePlan PlanTables(std::span<const Cluster> clusters);

}  // namespace deltawire::codec
