#include "codec/table_plan.h"

#include <algorithm>

namespace deltawire::codec {
namespace {

struct Group {
  Cluster sum;
  size_t clusters = 1;
  FrequencyTable table;
  double bits = 0;
  bool plain = false;
};

Group MakeGroup(const Cluster& sum, size_t clusters) {
  Group group{sum, clusters, FitTable(sum.symbols), 0, false};
  BitWriter serialised;
  WriteTable(group.table, serialised);
  const double coded = static_cast<double>(sum.coded_bits) + CodeLengthBits(sum.symbols, group.table) +
                       static_cast<double>(serialised.bit_count());
  const auto plain = static_cast<double>(sum.plain_bits);
  group.plain = plain <= coded;
  group.bits = std::min(plain, coded);
  return group;
}

Group Merge(const Group& a, const Group& b) {
  Cluster sum = a.sum;
  for (size_t s = 0; s < sum.symbols.size(); ++s) sum.symbols[s] += b.sum.symbols[s];
  sum.coded_bits += b.sum.coded_bits;
  sum.plain_bits += b.sum.plain_bits;
  return MakeGroup(sum, a.clusters + b.clusters);
}

}  // namespace

TablePlan PlanTables(std::span<const Cluster> clusters) {
  std::vector<Group> groups;
  for (const Cluster& cluster : clusters) groups.push_back(MakeGroup(cluster, 1));
  std::vector<Group> merged;  // merged[i]: groups i and i + 1
  for (size_t i = 0; i + 1 < groups.size(); ++i) merged.push_back(Merge(groups[i], groups[i + 1]));

  const auto saving = [&](size_t i) { return groups[i].bits + groups[i + 1].bits - merged[i].bits; };
  while (!merged.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < merged.size(); ++i) {
      if (saving(i) > saving(best)) best = i;
    }
    if (saving(best) <= 0) break;
    const auto at = static_cast<ptrdiff_t>(best);
    groups[best] = merged[best];
    groups.erase(groups.begin() + at + 1);
    merged.erase(merged.begin() + at);
    if (best > 0) merged[best - 1] = Merge(groups[best - 1], groups[best]);
    if (best < merged.size()) merged[best] = Merge(groups[best], groups[best + 1]);
  }

  TablePlan plan;
  for (const Group& group : groups) {
    const uint32_t table = group.plain ? kNoTable : static_cast<uint32_t>(plan.tables.size());
    if (!group.plain) plan.tables.push_back(group.table);
    plan.table_of.insert(plan.table_of.end(), group.clusters, table);
  }
  return plan;
}

}  // namespace deltawire::codec
