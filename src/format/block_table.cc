#include "format/block_table.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "format/binary.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

// Byte format (docs/formats/block-table.md): magic, version, then varints and fixed words.
constexpr std::string_view kMagic = "DWBT";
constexpr uint64_t kMinBlockBytes = 28;  // coding, bytes, changed, uncertain, hash, digest

// Flags of a tensor's group.
constexpr uint8_t kWhole = 1;  // one block, which is the whole tensor: neither count nor box are stored
constexpr uint8_t kDigestStored = 2;   // the tensor's digest follows
constexpr uint8_t kDigestOfBlock = 4;  // the tensor's digest is that of its one whole block
constexpr uint8_t kKnownFlags = 7;

// The blocks and the digest of one tensor.
struct Group {
  uint32_t tensor = 0;
  std::span<const BlockEntry> blocks;
  const Digest* digest = nullptr;
};

// Joins the two sorted lists of a table.
std::vector<Group> GroupsOf(const BlockTable& table) {
  std::vector<Group> groups;
  size_t t = 0;
  size_t b = 0;
  while (t < table.tensors.size() || b < table.blocks.size()) {
    const bool from_tensor = t < table.tensors.size();
    const bool from_block = b < table.blocks.size();
    Group group;
    group.tensor = std::min(from_tensor ? table.tensors[t].tensor : std::numeric_limits<uint32_t>::max(),
                            from_block ? table.blocks[b].tensor : std::numeric_limits<uint32_t>::max());
    if (from_tensor && table.tensors[t].tensor == group.tensor) group.digest = &table.tensors[t++].after;
    const size_t first = b;
    while (b < table.blocks.size() && table.blocks[b].tensor == group.tensor) ++b;
    group.blocks = std::span(table.blocks).subspan(first, b - first);
    groups.push_back(group);
  }
  return groups;
}

bool IsWhole(std::span<const BlockEntry> blocks, const Shape& shape) {
  return blocks.size() == 1 && blocks[0].box == WholeBox(shape);
}

std::string BlockText(const Inventory& inventory, const BlockEntry& block) {
  return fmt::format("block table: tensor {}, block {}", Quoted(inventory.tensors[block.tensor].name),
                     BoxText(block.box));
}

Status CheckOne(const BlockEntry& block, const Inventory& inventory, uint64_t expected_offset,
                uint64_t blocks_bytes) {
  if (block.tensor >= inventory.tensors.size()) {
    return Fail(Code::kCorrupt, "block table: tensor index {}, the inventory has {} tensors", block.tensor,
                inventory.tensors.size());
  }
  const InventoryTensor& tensor = inventory.tensors[block.tensor];
  if (!BoxInside(block.box, tensor.shape)) {
    return Fail(Code::kCorrupt, "block table: tensor {}: a block lies outside shape {}", Quoted(tensor.name),
                ShapeText(tensor.shape));
  }
  const uint64_t elements = ElementCount(block.box);
  if (elements == 0 || elements > kMaxBlockElements) {
    return Fail(Code::kCorrupt, "{}: {} elements, expected 1 to {}", BlockText(inventory, block), elements,
                kMaxBlockElements);
  }
  if (uint64_t{block.changed} + block.uncertain > elements) {
    return Fail(Code::kCorrupt, "{}: {} changed and {} uncertain of {} elements", BlockText(inventory, block),
                block.changed, block.uncertain, elements);
  }
  if (block.coding == kDenseCoding && block.bytes != elements * DtypeBytes(tensor.dtype)) {
    return Fail(Code::kCorrupt, "{}: dense with {} bytes, expected {}", BlockText(inventory, block),
                block.bytes, elements * DtypeBytes(tensor.dtype));
  }
  if (block.offset != expected_offset || block.bytes > blocks_bytes - block.offset) {
    return Fail(Code::kCorrupt,
                "{}: bytes {}+{} do not follow the block before, which ends at {}, inside {} bytes",
                BlockText(inventory, block), block.offset, block.bytes, expected_offset, blocks_bytes);
  }
  return {};
}

// Two boxes that share an element, or a pair that straight cuts can't tell apart; nullopt when cuts across
// the tensor separate all boxes. Every grid comes apart in a level for its pieces and one per dimension; the
// level limit keeps hostile tables from taking quadratic time, and never lets an overlap pass, because no cut
// separates overlapping boxes.
std::optional<std::pair<uint32_t, uint32_t>> FindInseparable(std::span<const BlockEntry> blocks,
                                                             std::span<uint32_t> order, int level) {
  if (order.size() <= 1) return std::nullopt;
  const size_t rank = blocks[0].box.start.size();
  if (level == 0 || rank == 0) return std::pair{order[0], order[1]};
  for (size_t d = 0; d < rank; ++d) {
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(blocks[a].box.start[d], a) < std::pair(blocks[b].box.start[d], b);
    });
    std::vector<size_t> cuts = {0};
    uint64_t reach = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const Box& box = blocks[order[i]].box;
      if (i > 0 && box.start[d] >= reach) cuts.push_back(i);
      reach = std::max(reach, box.start[d] + box.size[d]);
    }
    if (cuts.size() == 1) continue;
    cuts.push_back(order.size());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      if (auto pair = FindInseparable(blocks, order.subspan(cuts[i], cuts[i + 1] - cuts[i]), level - 1))
        return pair;
    }
    return std::nullopt;
  }
  return std::pair{order[0], order[1]};
}

Status CheckApart(std::span<const BlockEntry> blocks, const Inventory& inventory) {
  std::vector<uint32_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0u);
  constexpr int kLevels = static_cast<int>(kMaxTensorRank) + 2;  // a grid's pieces, then its cuts by size
  const auto pair = FindInseparable(blocks, order, kLevels);
  if (!pair) return {};
  return Fail(Code::kCorrupt, "{}: overlaps block {} or can't be cut apart from it",
              BlockText(inventory, blocks[pair->first]), BoxText(blocks[pair->second].box));
}

void AppendBox(const Box& box, const Shape& shape, Bytes& out) {
  uint64_t partial = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.size[d] != shape[d]) partial |= uint64_t{1} << d;
  }
  AppendVarint(partial, out);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!(partial >> d & 1)) continue;
    AppendVarint(box.start[d], out);
    AppendVarint(box.size[d], out);
  }
}

Result<Box> ReadBox(BinaryReader& reader, const Shape& shape) {
  Box box = WholeBox(shape);
  const uint64_t mask_max = (uint64_t{1} << shape.size()) - 1;
  DELTAWIRE_ASSIGN(const uint64_t partial, reader.VarintUpTo(mask_max, "mask of cut dimensions"));
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!(partial >> d & 1)) continue;
    // A marked dimension that is whole would be a second spelling of the same box; shape[d] - 1 excludes it.
    DELTAWIRE_ASSIGN(box.start[d], reader.VarintUpTo(shape[d], "box start"));
    DELTAWIRE_ASSIGN(box.size[d], reader.VarintUpTo(std::max<uint64_t>(shape[d], 1) - 1, "box size"));
  }
  return box;
}

Status ReadGroup(BinaryReader& reader, const Inventory& inventory, uint32_t tensor, BlockTable& table) {
  const InventoryTensor& info = inventory.tensors[tensor];
  const auto refuse = [&](std::string_view why) {
    return Fail(Code::kCorrupt, "block table: tensor {} at offset {}: {}", Quoted(info.name), reader.offset(),
                why);
  };
  DELTAWIRE_ASSIGN(const uint8_t flags, reader.Byte("flags"));
  if (flags & ~kKnownFlags) return refuse("unknown flags");
  const bool whole = flags & kWhole;
  if ((flags & kDigestOfBlock) && (!whole || (flags & kDigestStored))) return refuse("contradicting flags");
  uint64_t count = 1;
  if (!whole) {
    DELTAWIRE_ASSIGN(count, reader.VarintUpTo(reader.remaining() / kMinBlockBytes, "number of blocks"));
  }
  if (count == 0 && !(flags & kDigestStored)) return refuse("neither blocks nor digest");
  std::optional<Digest> digest;
  if (flags & kDigestStored) {
    DELTAWIRE_ASSIGN(digest, reader.ReadDigest("tensor digest"));
  }
  for (uint64_t i = 0; i < count; ++i) {
    BlockEntry block;
    block.tensor = tensor;
    block.box = WholeBox(info.shape);
    if (!whole) {
      DELTAWIRE_ASSIGN(block.box, ReadBox(reader, info.shape));
    }
    constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();
    DELTAWIRE_ASSIGN(block.coding, reader.Byte("coding"));
    DELTAWIRE_ASSIGN(block.bytes, reader.VarintUpTo(kMax64, "bytes"));
    DELTAWIRE_ASSIGN(const uint64_t changed, reader.VarintUpTo(kMaxBlockElements, "changed"));
    DELTAWIRE_ASSIGN(const uint64_t uncertain, reader.VarintUpTo(kMaxBlockElements, "uncertain"));
    block.changed = static_cast<uint32_t>(changed);
    block.uncertain = static_cast<uint32_t>(uncertain);
    DELTAWIRE_ASSIGN(block.hash, reader.U64("hash"));
    DELTAWIRE_ASSIGN(block.after, reader.ReadDigest("block digest"));
    table.blocks.push_back(std::move(block));
  }
  const auto blocks = std::span(table.blocks).last(count);
  if (!whole && IsWhole(blocks, info.shape)) return refuse("a whole block spelled as a cut one");
  if (flags & kDigestOfBlock) digest = blocks[0].after;
  if ((flags & kDigestStored) && whole && *digest == blocks[0].after)
    return refuse("the block's digest repeated");
  if (digest) table.tensors.push_back({tensor, *digest});
  return {};
}

}  // namespace

void SortBlocks(BlockTable& table) {
  std::sort(table.blocks.begin(), table.blocks.end(), [](const BlockEntry& a, const BlockEntry& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.box.start < b.box.start;
  });
}

void AssignOffsets(BlockTable& table) {
  uint64_t offset = 0;
  for (BlockEntry& block : table.blocks) {
    block.offset = offset;
    offset += block.bytes;
  }
}

Status CheckBlockTable(const BlockTable& table, const Inventory& inventory, uint64_t blocks_bytes) {
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    if (table.tensors[i].tensor >= inventory.tensors.size()) {
      return Fail(Code::kCorrupt, "block table: tensor index {}, the inventory has {} tensors",
                  table.tensors[i].tensor, inventory.tensors.size());
    }
    if (i > 0 && table.tensors[i - 1].tensor >= table.tensors[i].tensor) {
      return Fail(Code::kCorrupt, "block table: digest of tensor {} out of order",
                  Quoted(inventory.tensors[table.tensors[i].tensor].name));
    }
  }
  uint64_t offset = 0;
  for (size_t first = 0; first < table.blocks.size();) {
    size_t end = first;
    for (; end < table.blocks.size() && table.blocks[end].tensor == table.blocks[first].tensor; ++end) {
      const BlockEntry& block = table.blocks[end];
      DELTAWIRE_TRY(CheckOne(block, inventory, offset, blocks_bytes));
      offset += block.bytes;
      if (end > first && !(table.blocks[end - 1].box.start < block.box.start)) {
        return Fail(Code::kCorrupt, "{}: out of order after {}", BlockText(inventory, block),
                    BoxText(table.blocks[end - 1].box));
      }
    }
    if (end < table.blocks.size() && table.blocks[end].tensor < table.blocks[first].tensor) {
      return Fail(Code::kCorrupt, "block table: tensor index {} follows {}", table.blocks[end].tensor,
                  table.blocks[first].tensor);
    }
    DELTAWIRE_TRY(CheckApart(std::span(table.blocks).subspan(first, end - first), inventory));
    first = end;
  }
  if (offset != blocks_bytes) {
    return Fail(Code::kCorrupt, "block table: blocks cover {} bytes, the section has {}", offset,
                blocks_bytes);
  }
  return {};
}

Bytes BlockTableBytes(const BlockTable& table, const Inventory& inventory) {
  Bytes out(kMagic.begin(), kMagic.end());
  out.push_back(kBlockTableVersion);
  AppendVarint(table.entropy_bytes, out);
  AppendLe(table.entropy_hash, out);
  const std::vector<Group> groups = GroupsOf(table);
  AppendVarint(groups.size(), out);
  uint64_t next = 0;  // smallest tensor index that may follow
  for (const Group& group : groups) {
    AppendVarint(group.tensor - next, out);
    next = uint64_t{group.tensor} + 1;
    const Shape& shape = inventory.tensors[group.tensor].shape;
    const bool whole = IsWhole(group.blocks, shape);
    const bool repeated = whole && group.digest != nullptr && *group.digest == group.blocks[0].after;
    const bool stored = group.digest != nullptr && !repeated;
    out.push_back((whole ? kWhole : 0) | (stored ? kDigestStored : 0) | (repeated ? kDigestOfBlock : 0));
    if (!whole) AppendVarint(group.blocks.size(), out);
    if (stored) AppendDigest(*group.digest, out);
    for (const BlockEntry& block : group.blocks) {
      if (!whole) AppendBox(block.box, shape, out);
      out.push_back(block.coding);
      AppendVarint(block.bytes, out);
      AppendVarint(block.changed, out);
      AppendVarint(block.uncertain, out);
      AppendLe(block.hash, out);
      AppendDigest(block.after, out);
    }
  }
  return out;
}

Result<BlockTable> ParseBlockTable(ByteSpan bytes, const Inventory& inventory, uint64_t blocks_bytes) {
  BinaryReader reader(bytes, "block table");
  DELTAWIRE_ASSIGN(const ByteSpan magic, reader.Take(kMagic.size(), "magic"));
  if (AsText(magic) != kMagic) {
    return Fail(Code::kCorrupt, "block table: begins with {}, expected \"{}\"", ToHex(magic), kMagic);
  }
  DELTAWIRE_ASSIGN(const uint8_t version, reader.Byte("version"));
  if (version != kBlockTableVersion) {
    return Fail(Code::kUnsupported, "block table: format version {}; this build reads version {}", version,
                kBlockTableVersion);
  }
  BlockTable table;
  DELTAWIRE_ASSIGN(table.entropy_bytes, reader.Varint("entropy bytes"));
  DELTAWIRE_ASSIGN(table.entropy_hash, reader.U64("entropy hash"));
  DELTAWIRE_ASSIGN(const uint64_t groups, reader.VarintUpTo(inventory.tensors.size(), "number of tensors"));
  uint64_t next = 0;
  for (uint64_t i = 0; i < groups; ++i) {
    if (next == inventory.tensors.size()) {
      return Fail(Code::kCorrupt, "block table: more tensors than the inventory's {}", next);
    }
    DELTAWIRE_ASSIGN(const uint64_t step,
                     reader.VarintUpTo(inventory.tensors.size() - next - 1, "tensor index"));
    const uint64_t tensor = next + step;
    next = tensor + 1;
    DELTAWIRE_TRY(ReadGroup(reader, inventory, static_cast<uint32_t>(tensor), table));
  }
  DELTAWIRE_TRY(reader.End());
  AssignOffsets(table);
  DELTAWIRE_TRY(CheckBlockTable(table, inventory, blocks_bytes));
  return table;
}

Status CheckBlock(const BlockEntry& block, ByteSpan blocks) {
  if (block.offset > blocks.size() || block.bytes > blocks.size() - block.offset) {
    return Fail(Code::kCorrupt, "block {}: bytes {}+{} lie outside a section of {}", BoxText(block.box),
                block.offset, block.bytes, blocks.size());
  }
  const uint64_t found = Xxh3_64(blocks.subspan(block.offset, block.bytes));
  if (found == block.hash) return {};
  return Fail(Code::kCorrupt,
              "block {} of tensor index {}: hash of its {} bytes at offset {} is {:016x}, expected {:016x}; "
              "fetch the update again",
              BoxText(block.box), block.tensor, block.bytes, block.offset, found, block.hash);
}

}  // namespace deltawire::format
