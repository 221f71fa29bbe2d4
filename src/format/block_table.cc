#include "format/block_table.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

Status CheckElements(const BlockEntry& block, const Inventory& inventory) {
  const InventoryTensor& tensor = inventory.tensors[block.tensor];
  const uint64_t elements = BlockElements(block, inventory);
  if (elements == 0 || elements > kMaxBlockElements) {
    return Fail(Code::kCorrupt, "block table: {}: {} elements, expected 1 to {}", BlockName(block, inventory),
                elements, kMaxBlockElements);
  }
  if (uint64_t{block.changed} + block.uncertain > elements) {
    return Fail(Code::kCorrupt, "block table: {}: {} changed and {} uncertain of {} elements",
                BlockName(block, inventory), block.changed, block.uncertain, elements);
  }
  if (block.coding != kDenseCoding) return {};
  const uint64_t expected = elements * DtypeBytes(tensor.dtype);
  if (block.bytes != expected || block.changed != 0 || block.uncertain != 0) {
    return Fail(Code::kCorrupt,
                "block table: {}: dense with {} bytes and {} listed elements, expected {} bytes and none",
                BlockName(block, inventory), block.bytes, uint64_t{block.changed} + block.uncertain,
                expected);
  }
  return {};
}

// Tensors of the inventory that blocks have been seen of: `joint` ones may have no other block or digest.
class Seen {
 public:
  explicit Seen(const Inventory& inventory) : inventory_(&inventory), of_(inventory.tensors.size(), kNot) {}

  Status AddBlock(const BlockEntry& block) {
    DELTAWIRE_TRY(Add(block.tensor, block.joint() ? kJoint : kAlone));
    for (const uint32_t tensor : block.joined) DELTAWIRE_TRY(Add(tensor, kJoint));
    return {};
  }
  Status CheckDigest(uint32_t tensor) const {
    if (of_[tensor] != kJoint) return {};
    return Fail(Code::kCorrupt, "block table: tensor {} is in a joint block and has a digest of its own",
                Quoted(inventory_->tensors[tensor].name));
  }

 private:
  enum Kind : uint8_t { kNot, kAlone, kJoint };
  Status Add(uint32_t tensor, Kind kind) {
    const Kind before = std::exchange(of_[tensor], kind);
    if (before == kNot || (before == kAlone && kind == kAlone)) return {};
    return Fail(Code::kCorrupt, "block table: tensor {} is in a joint block and in another block",
                Quoted(inventory_->tensors[tensor].name));
  }

  const Inventory* inventory_;
  std::vector<Kind> of_;
};

Status CheckJoined(const BlockEntry& block, const Inventory& inventory) {
  const InventoryTensor& first = inventory.tensors[block.tensor];
  const auto refuse = [&](std::string_view why) {
    return Fail(Code::kCorrupt, "block table: joint block that begins with tensor {}: {}", Quoted(first.name),
                why);
  };
  if (block.box != WholeBox(first.shape)) return refuse("its box is not the whole tensor");
  if (*ElementCount(first.shape) == 0) return refuse("that tensor has no elements");
  if (block.coding == kDenseCoding) return refuse("it is dense, and dense blocks have one tensor");
  uint32_t before = block.tensor;
  for (const uint32_t tensor : block.joined) {
    if (tensor <= before) return refuse("its tensors don't ascend");
    if (tensor >= inventory.tensors.size()) return refuse("a tensor index above the inventory's");
    if (DtypeBytes(inventory.tensors[tensor].dtype) != DtypeBytes(first.dtype)) {
      return refuse(
          fmt::format("tensor {} has elements of another width", Quoted(inventory.tensors[tensor].name)));
    }
    if (*ElementCount(inventory.tensors[tensor].shape) == 0) {
      return refuse(fmt::format("tensor {} has no elements", Quoted(inventory.tensors[tensor].name)));
    }
    before = tensor;
  }
  return {};
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
  if (block.joint()) DELTAWIRE_TRY(CheckJoined(block, inventory));
  DELTAWIRE_TRY(CheckElements(block, inventory));
  if (block.offset != expected_offset || block.bytes > blocks_bytes - block.offset) {
    return Fail(
        Code::kCorrupt,
        "block table: {}: bytes {}+{} do not follow the block before, which ends at {}, inside {} bytes",
        BlockName(block, inventory), block.offset, block.bytes, expected_offset, blocks_bytes);
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
  return Fail(Code::kCorrupt, "block table: {}: overlaps block {} or can't be cut apart from it",
              BlockName(blocks[pair->first], inventory), BoxText(blocks[pair->second].box));
}

}  // namespace

uint64_t BlockElements(const BlockEntry& block, const Inventory& inventory) {
  uint64_t elements = ElementCount(block.box);
  for (const uint32_t tensor : block.joined) elements += *ElementCount(inventory.tensors[tensor].shape);
  return elements;
}

std::string BlockName(const BlockEntry& block, const Inventory& inventory) {
  const std::string first = Quoted(inventory.tensors[block.tensor].name);
  if (!block.joint()) return fmt::format("tensor {}, block {}", first, BoxText(block.box));
  return fmt::format("joint block of {} tensors, {} to {}", block.joined.size() + 1, first,
                     Quoted(inventory.tensors[block.joined.back()].name));
}

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
  Seen seen(inventory);
  uint64_t offset = 0;
  for (size_t first = 0; first < table.blocks.size();) {
    size_t end = first;
    for (; end < table.blocks.size() && table.blocks[end].tensor == table.blocks[first].tensor; ++end) {
      const BlockEntry& block = table.blocks[end];
      DELTAWIRE_TRY(CheckOne(block, inventory, offset, blocks_bytes));
      DELTAWIRE_TRY(seen.AddBlock(block));
      offset += block.bytes;
      if (end > first && !(table.blocks[end - 1].box.start < block.box.start)) {
        return Fail(Code::kCorrupt, "block table: {}: out of order after {}", BlockName(block, inventory),
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
  for (size_t i = 0; i < table.tensors.size(); ++i) {
    const uint32_t tensor = table.tensors[i].tensor;
    if (tensor >= inventory.tensors.size()) {
      return Fail(Code::kCorrupt, "block table: tensor index {}, the inventory has {} tensors", tensor,
                  inventory.tensors.size());
    }
    if (i > 0 && table.tensors[i - 1].tensor >= tensor) {
      return Fail(Code::kCorrupt, "block table: digest of tensor {} out of order",
                  Quoted(inventory.tensors[tensor].name));
    }
    DELTAWIRE_TRY(seen.CheckDigest(tensor));
  }
  return {};
}

ByteSpan BlockBytes(const BlockEntry& block, ByteSpan blocks) {
  return blocks.subspan(block.offset, block.bytes);
}

Status CheckBlockBytes(const BlockEntry& block, ByteSpan bytes) {
  if (bytes.size() != block.bytes) {
    return Fail(Code::kCorrupt, "{} bytes, expected {}", bytes.size(), block.bytes);
  }
  const uint64_t found = Xxh3_64(bytes);
  if (found == block.hash) return {};
  return Fail(Code::kCorrupt,
              "hash of its {} bytes at offset {} is {:016x}, expected {:016x}; fetch the update again",
              block.bytes, block.offset, found, block.hash);
}

}  // namespace deltawire::format
