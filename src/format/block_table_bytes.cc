// The byte form of block tables (docs/formats/block-table.md): magic, version, then varints and fixed words.
#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "format/binary.h"
#include "format/block_table.h"
#include "format/other_version.h"
#include "format/text.h"

namespace deltawire::format {
namespace {

constexpr std::string_view kMagic = "DWBT";
constexpr uint64_t kMinBlockBytes = 25;  // coding, hash, digest

// Flags of a group.
constexpr uint8_t kWhole = 1;  // one block, which is the whole tensor: neither count nor box are stored
constexpr uint8_t kDigestStored = 2;   // the tensor's digest follows
constexpr uint8_t kDigestOfBlock = 4;  // the tensor's digest is that of its one whole block
constexpr uint8_t kJoint = 8;          // one joint block: its other tensors follow; no other flag
constexpr uint8_t kKnownFlags = 15;

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

// The tensors of a joint block as stretches of consecutive indices: how many stretches follow the first, and
// for each how many indices are left out before it, less one, and how many follow its first.
void AppendJoined(const BlockEntry& block, Bytes& out) {
  std::vector<std::pair<uint32_t, uint32_t>> stretches = {{block.tensor, 0}};
  for (const uint32_t tensor : block.joined) {
    auto& [first, more] = stretches.back();
    if (tensor == first + more + 1) {
      ++more;
    } else {
      stretches.emplace_back(tensor, 0);
    }
  }
  AppendVarint(stretches.size() - 1, out);
  AppendVarint(stretches[0].second, out);
  for (size_t i = 1; i < stretches.size(); ++i) {
    const auto [first, more] = stretches[i - 1];
    AppendVarint(stretches[i].first - (first + more) - 2, out);
    AppendVarint(stretches[i].second, out);
  }
}

class TableReader {
 public:
  TableReader(ByteSpan bytes, const Inventory& inventory)
      : reader_(bytes, "block table"), inventory_(inventory) {}

  Result<BlockTable> Read() {
    DELTAWIRE_ASSIGN(const ByteSpan magic, reader_.Take(kMagic.size(), "magic"));
    if (AsText(magic) != kMagic) {
      return Fail(Code::kCorrupt, "block table: begins with {}, expected \"{}\"", ToHex(magic), kMagic);
    }
    DELTAWIRE_ASSIGN(const uint8_t version, reader_.Byte("version"));
    if (version != kBlockTableVersion) return Fail(OtherVersion("block table", version, kBlockTableVersion));
    DELTAWIRE_ASSIGN(table_.entropy_bytes, reader_.Varint("entropy bytes"));
    DELTAWIRE_ASSIGN(table_.entropy_hash, reader_.U64("entropy hash"));
    const uint64_t tensors = inventory_.tensors.size();
    DELTAWIRE_ASSIGN(const uint64_t groups, reader_.VarintUpTo(tensors, "number of groups"));
    uint64_t next = 0;
    for (uint64_t i = 0; i < groups; ++i) {
      if (next == tensors) {
        return Fail(Code::kCorrupt, "block table: more groups than the inventory's {} tensors allow",
                    tensors);
      }
      DELTAWIRE_ASSIGN(const uint64_t step, reader_.VarintUpTo(tensors - next - 1, "tensor index"));
      next += step + 1;
      DELTAWIRE_TRY(ReadGroup(static_cast<uint32_t>(next - 1)));
    }
    DELTAWIRE_TRY(reader_.End());
    AssignOffsets(table_);
    return std::move(table_);
  }

 private:
  Error Refuse(uint32_t tensor, std::string_view why) const {
    return Error(Code::kCorrupt, fmt::format("block table: tensor {} at offset {}: {}",
                                             Quoted(inventory_.tensors[tensor].name), reader_.offset(), why));
  }

  Result<Box> ReadBox(const Shape& shape) {
    Box box = WholeBox(shape);
    const uint64_t mask_max = (uint64_t{1} << shape.size()) - 1;
    DELTAWIRE_ASSIGN(const uint64_t partial, reader_.VarintUpTo(mask_max, "mask of cut dimensions"));
    for (size_t d = 0; d < shape.size(); ++d) {
      if (!(partial >> d & 1)) continue;
      // A marked dimension that is whole would be a second spelling of the same box; shape[d] - 1 excludes
      // it.
      DELTAWIRE_ASSIGN(box.start[d], reader_.VarintUpTo(shape[d], "box start"));
      DELTAWIRE_ASSIGN(box.size[d], reader_.VarintUpTo(std::max<uint64_t>(shape[d], 1) - 1, "box size"));
    }
    return box;
  }

  // `more` tensors after `last`.
  Status ReadStretch(uint32_t& last, std::vector<uint32_t>& joined) {
    const uint64_t tensors = inventory_.tensors.size();
    DELTAWIRE_ASSIGN(const uint64_t more, reader_.VarintUpTo(tensors - last - 1, "number of joined tensors"));
    // No tensor is in two joint blocks: a hostile table takes no more memory than the inventory.
    if (joined_ + more > tensors) return Fail(Refuse(last, "more joined tensors than the inventory has"));
    joined_ += more;
    for (uint64_t i = 0; i < more; ++i) joined.push_back(++last);
    return {};
  }

  Status ReadJoined(BlockEntry& block) {
    uint32_t last = block.tensor;
    DELTAWIRE_ASSIGN(const uint64_t stretches, reader_.VarintUpTo(reader_.remaining() / 2, "stretches"));
    DELTAWIRE_TRY(ReadStretch(last, block.joined));
    for (uint64_t i = 0; i < stretches; ++i) {
      const uint64_t left = inventory_.tensors.size() - last - 1;
      if (left < 2) return Fail(Refuse(last, "no tensor is left to join"));
      DELTAWIRE_ASSIGN(const uint64_t skip, reader_.VarintUpTo(left - 2, "joined tensor"));
      last += static_cast<uint32_t>(skip) + 2;
      block.joined.push_back(last);
      DELTAWIRE_TRY(ReadStretch(last, block.joined));
    }
    if (!block.joint()) return Fail(Refuse(block.tensor, "a joint block of one tensor"));
    return {};
  }

  // What follows the tensors or the box.
  Status ReadRest(BlockEntry& block) {
    const uint32_t width = DtypeBytes(inventory_.tensors[block.tensor].dtype);
    DELTAWIRE_ASSIGN(block.coding, reader_.Byte("coding"));
    if (block.coding == kDenseCoding) {
      block.bytes = ElementCount(block.box) * width;
    } else {
      constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();
      DELTAWIRE_ASSIGN(block.bytes, reader_.VarintUpTo(kMax64, "bytes"));
      DELTAWIRE_ASSIGN(const uint64_t changed, reader_.VarintUpTo(kMaxBlockElements, "changed"));
      DELTAWIRE_ASSIGN(const uint64_t uncertain, reader_.VarintUpTo(kMaxBlockElements, "uncertain"));
      block.changed = static_cast<uint32_t>(changed);
      block.uncertain = static_cast<uint32_t>(uncertain);
    }
    DELTAWIRE_ASSIGN(block.hash, reader_.U64("hash"));
    DELTAWIRE_ASSIGN(block.after, reader_.ReadDigest("block digest"));
    return {};
  }

  Status ReadGroup(uint32_t tensor) {
    const Shape& shape = inventory_.tensors[tensor].shape;
    DELTAWIRE_ASSIGN(const uint8_t flags, reader_.Byte("flags"));
    if (flags & ~kKnownFlags) return Fail(Refuse(tensor, "unknown flags"));
    const bool joint = flags & kJoint;
    const bool whole = flags & kWhole;
    const bool stored = flags & kDigestStored;
    const bool of_block = flags & kDigestOfBlock;
    if ((joint && flags != kJoint) || (of_block && (!whole || stored)))
      return Fail(Refuse(tensor, "contradicting flags"));
    if (joint) {
      BlockEntry block{.tensor = tensor, .box = WholeBox(shape)};
      DELTAWIRE_TRY(ReadJoined(block));
      DELTAWIRE_TRY(ReadRest(block));
      table_.blocks.push_back(std::move(block));
      return {};
    }
    uint64_t count = 1;
    if (!whole) {
      DELTAWIRE_ASSIGN(count, reader_.VarintUpTo(reader_.remaining() / kMinBlockBytes, "number of blocks"));
    }
    if (count == 0 && !stored) return Fail(Refuse(tensor, "neither blocks nor digest"));
    std::optional<Digest> digest;
    if (stored) {
      DELTAWIRE_ASSIGN(digest, reader_.ReadDigest("tensor digest"));
    }
    for (uint64_t i = 0; i < count; ++i) {
      BlockEntry block{.tensor = tensor, .box = WholeBox(shape)};
      if (!whole) {
        DELTAWIRE_ASSIGN(block.box, ReadBox(shape));
      }
      DELTAWIRE_TRY(ReadRest(block));
      table_.blocks.push_back(std::move(block));
    }
    const auto blocks = std::span(table_.blocks).last(count);
    if (!whole && IsWhole(blocks, shape)) return Fail(Refuse(tensor, "a whole block spelled as a cut one"));
    if (of_block) digest = blocks[0].after;
    if (stored && whole && *digest == blocks[0].after)
      return Fail(Refuse(tensor, "the block's digest repeated"));
    if (digest) table_.tensors.push_back({tensor, *digest});
    return {};
  }

  BinaryReader reader_;
  const Inventory& inventory_;
  BlockTable table_;
  uint64_t joined_ = 0;
};

}  // namespace

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
    const bool joint = !group.blocks.empty() && group.blocks[0].joint();
    const bool whole = !joint && IsWhole(group.blocks, shape);
    const bool repeated = whole && group.digest != nullptr && *group.digest == group.blocks[0].after;
    const bool stored = group.digest != nullptr && !repeated;
    out.push_back((joint ? kJoint : 0) | (whole ? kWhole : 0) | (stored ? kDigestStored : 0) |
                  (repeated ? kDigestOfBlock : 0));
    if (joint) {
      AppendJoined(group.blocks[0], out);
    } else if (!whole) {
      AppendVarint(group.blocks.size(), out);
    }
    if (stored) AppendDigest(*group.digest, out);
    for (const BlockEntry& block : group.blocks) {
      if (!joint && !whole) AppendBox(block.box, shape, out);
      out.push_back(block.coding);
      if (block.coding != kDenseCoding) {
        AppendVarint(block.bytes, out);
        AppendVarint(block.changed, out);
        AppendVarint(block.uncertain, out);
      }
      AppendLe(block.hash, out);
      AppendDigest(block.after, out);
    }
  }
  return out;
}

Result<BlockTable> ParseBlockTable(ByteSpan bytes, const Inventory& inventory, uint64_t blocks_bytes) {
  DELTAWIRE_ASSIGN(BlockTable table, TableReader(bytes, inventory).Read());
  DELTAWIRE_TRY(CheckBlockTable(table, inventory, blocks_bytes));
  return table;
}

Result<BlockTable> ParseDetachedTable(ByteSpan bytes, const Inventory& inventory,
                                      uint64_t most_blocks_bytes) {
  DELTAWIRE_ASSIGN(BlockTable table, TableReader(bytes, inventory).Read());
  uint64_t blocks_bytes = 0;
  for (const BlockEntry& block : table.blocks) {
    if (block.bytes > most_blocks_bytes - blocks_bytes) {
      return Fail(Code::kCorrupt, "block table: {} has {} bytes, but the blocks have at most {} together",
                  BlockName(block, inventory), block.bytes, most_blocks_bytes);
    }
    blocks_bytes += block.bytes;
  }
  DELTAWIRE_TRY(CheckBlockTable(table, inventory, blocks_bytes));
  return table;
}

}  // namespace deltawire::format
