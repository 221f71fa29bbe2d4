#include "pubsub/ranged_part.h"

#include <algorithm>

#include "base/hash.h"

namespace deltawire::pubsub {
namespace {

// A gap between two wanted blocks that costs less to read than another request.
constexpr uint64_t kBridged = 64 << 10;

bool IsWanted(const format::BlockEntry& block, std::span<const uint32_t> tensors) {
  const auto wanted = [&](uint32_t tensor) {
    return std::binary_search(tensors.begin(), tensors.end(), tensor);
  };
  return wanted(block.tensor) || std::any_of(block.joined.begin(), block.joined.end(), wanted);
}

// One read, and the wanted blocks in it.
struct Stretch {
  uint64_t begin;  // in the blocks section
  uint64_t end;
  std::vector<const format::BlockEntry*> blocks;
};

std::vector<Stretch> StretchesOf(const format::BlockTable& table, std::span<const uint32_t> tensors) {
  std::vector<Stretch> stretches;
  for (const auto& block : table.blocks) {
    if (!IsWanted(block, tensors)) continue;
    if (stretches.empty() || block.offset - stretches.back().end > kBridged) {
      stretches.push_back({block.offset, block.offset, {}});
    }
    stretches.back().end = block.offset + block.bytes;
    stretches.back().blocks.push_back(&block);
  }
  return stretches;
}

}  // namespace

Result<RangedBlocks> ReadRanges(Store& store, const format::ManifestPart& part,
                                std::span<const uint32_t> tensors, const format::Inventory& inventory,
                                const delta::GridIndex& grid, const Parallel& parallel) {
  const auto& [table_offset, table_bytes, table_sha256] = part.table;
  const std::string& name = part.object.name;
  if (table_bytes == 0) {
    return Fail(Code::kUnsupported, "{}: a part of coding {} has no block table; read it whole", name,
                part.coding);
  }
  RangedBlocks out;
  const auto read = [&](uint64_t offset, uint64_t bytes) -> Result<Bytes> {
    if (bytes == 0) return Bytes();
    ++out.reads;
    out.bytes_read += bytes;
    return store.GetRange(name, offset, bytes);
  };
  const auto corrupt = [&](const Error& error) { return Fail(Error(error).Within(name)); };

  DELTAWIRE_ASSIGN(const Bytes table_section, read(table_offset, table_bytes));
  if (const std::string found = ToHex(Sha256(table_section)); found != table_sha256) {
    return Fail(Code::kCorrupt, "{}: the block table at {}+{} has SHA-256 {}, the manifest says {}", name,
                table_offset, table_bytes, found, table_sha256);
  }
  const auto table = format::ParseDetachedTable(table_section, inventory, table_offset);
  if (!table) return corrupt(table.error());

  // A run's part carries no inventory: the table follows the entropy section, which follows the blocks.
  const uint64_t blocks_bytes =
      table->blocks.empty() ? 0 : table->blocks.back().offset + table->blocks.back().bytes;
  if (table->entropy_bytes > table_offset - blocks_bytes) {
    return Fail(Code::kCorrupt, "{}: {} bytes of blocks and {} of tables do not fit before the table at {}",
                name, blocks_bytes, table->entropy_bytes, table_offset);
  }
  const uint64_t entropy_offset = table_offset - table->entropy_bytes;
  const uint64_t blocks_offset = entropy_offset - blocks_bytes;
  const auto stretches = StretchesOf(*table, tensors);
  if (stretches.empty()) return out;
  DELTAWIRE_ASSIGN(const Bytes entropy, read(entropy_offset, table->entropy_bytes));
  if (Xxh3_64(entropy) != table->entropy_hash) {
    return Fail(Code::kCorrupt, "{}: the entropy section at {}+{} is not the one that its table names", name,
                entropy_offset, entropy.size());
  }
  std::vector<delta::FetchedBlock> fetched;
  for (const Stretch& stretch : stretches) {
    DELTAWIRE_ASSIGN(out.ranges.emplace_back(),
                     read(blocks_offset + stretch.begin, stretch.end - stretch.begin));
    for (const auto* block : stretch.blocks) {
      fetched.push_back(
          {block, ByteSpan(out.ranges.back()).subspan(block->offset - stretch.begin, block->bytes)});
    }
  }
  auto blocks = delta::DecodeBlocks(fetched, entropy, inventory, grid, parallel);
  if (!blocks) return corrupt(blocks.error());
  out.blocks = *std::move(blocks);
  return out;
}

}  // namespace deltawire::pubsub
