#include "delta/encode.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/hash.h"
#include "delta/join_blocks.h"
#include "delta/open_update.h"
#include "delta/value_check.h"

namespace deltawire::delta {
namespace {

codec::BlockChanges View(const BlockChange& change, uint32_t elements, uint32_t width) {
  return {.elements = elements,
          .width = width,
          .changed = change.changed,
          .old_bits = change.old_bits,
          .new_bits = change.new_bits,
          .uncertain = change.uncertain,
          .uncertain_low = change.uncertain_low,
          .uncertain_span = change.uncertain_span,
          .uncertain_new = change.uncertain_new};
}

// What a dense block costs beside its bits: its row in the table.
constexpr uint64_t kRowBytes = 25;

struct Item {
  JointBlock block;
  BlockChange joined;  // of all members, when there are several
  codec::PreparedBlock prepared;
  Bytes bytes;  // what the section holds; empty for a block that came dense
  bool dense = false;
  Status status = {};

  const ChangedMember& first() const { return block.members.front(); }
  const BlockChange& change() const { return block.members.size() == 1 ? first().block->change : joined; }
  codec::BlockChanges View() const { return delta::View(change(), block.elements, block.width); }
  // The block's bytes in the section.
  ByteSpan bits() const { return change().dense ? ByteSpan(change().dense_bits) : ByteSpan(bytes); }
};

// All bits of a box: where they stand, or read into `scratch`.
Result<ByteSpan> Bits(const ClassSource& source, uint32_t tensor, const Box& box, uint32_t width,
                      Bytes& scratch) {
  if (source.view) {
    const ByteSpan there = source.view(tensor, box);
    if (!there.empty()) return there;
  }
  scratch.resize(ElementCount(box) * width);
  DELTAWIRE_TRY(source.read(tensor, box, scratch));
  return ByteSpan(scratch);
}

// All bits of a block, member by member; what has to be read is kept in `scratch`.
Status Bits(const ClassSource& source, const JointBlock& block, std::vector<Bytes>& scratch,
            std::vector<ByteSpan>& out) {
  scratch.resize(block.members.size());
  for (size_t i = 0; i < block.members.size(); ++i) {
    const ChangedMember& member = block.members[i];
    DELTAWIRE_ASSIGN(const ByteSpan bits,
                     Bits(source, member.tensor->tensor, *member.box, block.width, scratch[i]));
    out.push_back(bits);
  }
  return {};
}

// About one element of 256, but at least 2048, in one piece; where in the block is different from block to
// block.
Box SampleOf(const Box& box, uint64_t index) {
  constexpr uint64_t kShare = 256;
  constexpr uint64_t kLeast = 2048;
  Box out = box;
  const uint64_t elements = ElementCount(box);
  for (size_t d = 0; d < box.size.size(); ++d) {
    const uint64_t rows = box.size[d];
    if (rows == 1) continue;
    const uint64_t wanted = std::max(elements / kShare, std::min(kLeast, elements));
    const uint64_t row = elements / rows;
    out.size[d] = std::min(rows, (wanted + row - 1) / row);
    out.start[d] += index * 0x9E3779B97F4A7C15 % (rows - out.size[d] + 1);
    break;
  }
  return out;
}

// Every element's new bits, if the lists name every element.
void ScatterAll(const BlockChange& change, uint32_t width, Bytes& out) {
  const auto put = [&](const std::vector<uint32_t>& positions, const Bytes& bits) {
    for (size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(out.data() + uint64_t{positions[i]} * width, bits.data() + i * width, width);
    }
  };
  put(change.changed, change.new_bits);
  put(change.uncertain, change.uncertain_new);
}

// All new bits of a changed block; empty where neither the lists nor the source have them.
Result<Bytes> DenseBits(const ClassSource& source, const ChangedMember& member, uint32_t width) {
  const BlockChange& change = member.block->change;
  Bytes bits(uint64_t{member.elements} * width);
  if (change.changed.size() + change.uncertain.size() == member.elements) {
    ScatterAll(change, width, bits);
  } else if (source.read) {
    DELTAWIRE_TRY(source.read(member.tensor->tensor, *member.box, bits));
  } else {
    bits.clear();
  }
  return bits;
}

Item DenseItem(const ChangedMember& member, uint32_t width, Bytes bits) {
  Item item;
  item.block = {{member}, member.elements, width};
  item.bytes = std::move(bits);
  item.dense = true;
  return item;
}

// The stream of a surveyed block with its check. Dense instead where that is smaller and possible: the block
// then falls apart into `dense`.
Status EncodeItem(const codec::Encoder& encoder, const EncodeOptions& options, Item& item,
                  std::vector<Item>& dense) {
  std::vector<uint32_t> populations;
  DELTAWIRE_TRY(encoder.Encode(item.View(), item.prepared, item.bytes, populations));
  item.prepared = {};
  const BlockChange& change = item.change();
  if (options.coding != codec::Coding::kAbsolute) {
    AppendLe(ValueCheck(change.new_bits, change.uncertain_new, populations), item.bytes);
  }
  item.joined = {};
  const auto& members = item.block.members;
  const uint64_t raw = uint64_t{item.block.elements} * item.block.width;
  if (item.bytes.size() <= raw + kRowBytes * (members.size() - 1)) return {};
  std::vector<Item> apart;
  for (const ChangedMember& member : members) {
    DELTAWIRE_ASSIGN(Bytes bits, DenseBits(options.source, member, item.block.width));
    if (bits.empty()) return {};
    apart.push_back(DenseItem(member, item.block.width, std::move(bits)));
  }
  dense = std::move(apart);
  item.bytes = {};
  return {};
}

format::BlockEntry EntryOf(const Item& item, codec::Coding coding, ByteSpan bytes) {
  const ChangedMember& first = item.first();
  format::BlockEntry entry{.tensor = first.tensor->tensor, .box = *first.box};
  for (const ChangedMember& member : item.block.members) {
    if (&member != &first) entry.joined.push_back(member.tensor->tensor);
    entry.after += member.block->after;
    if (item.dense) continue;
    const BlockChange& change = member.block->change;
    entry.changed += static_cast<uint32_t>(change.changed.size());
    entry.uncertain += static_cast<uint32_t>(change.uncertain.size());
  }
  if (coding == codec::Coding::kAbsolute) {
    entry.changed += entry.uncertain;
    entry.uncertain = 0;
  }
  entry.coding = static_cast<uint8_t>(item.dense ? codec::Coding::kDense : coding);
  entry.bytes = bytes.size();
  entry.hash = Xxh3_64(bytes);
  return entry;
}

// The rows of a table and its section. A joint block that fell apart left its tensors behind those of others:
// `items` are sorted here.
void LayOut(std::vector<const Item*> items, const std::vector<ChangedTensor>& tensors, codec::Coding coding,
            format::BlockTable& table, Bytes& section) {
  std::sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    const auto place = [](const ChangedMember& first) {
      return std::pair(first.tensor->tensor, first.block->block);
    };
    return place(a->first()) < place(b->first());
  });
  std::set<uint32_t> joint;
  for (const Item* item : items) {
    const ByteSpan bytes = item->bits();
    table.blocks.push_back(EntryOf(*item, coding, bytes));
    table.blocks.back().offset = section.size();
    section.insert(section.end(), bytes.begin(), bytes.end());
    if (item->block.members.size() == 1) continue;
    for (const ChangedMember& member : item->block.members) joint.insert(member.tensor->tensor);
  }
  for (const ChangedTensor& tensor : tensors) {
    if (!joint.contains(tensor.tensor)) table.tensors.push_back({tensor.tensor, tensor.after});
  }
}

}  // namespace

Bytes EncodedUpdate::Join() const {
  Bytes file;
  file.reserve(size_bytes());
  file.insert(file.end(), frame.head.begin(), frame.head.end());
  file.insert(file.end(), blocks.begin(), blocks.end());
  file.insert(file.end(), frame.tail.begin(), frame.tail.end());
  return file;
}

Result<EncodedUpdate> EncodeUpdate(const format::UpdateHeader& header, const format::Inventory& inventory,
                                   const GridIndex& grid, const std::vector<ChangedTensor>& tensors,
                                   const EncodeOptions& options, const Parallel& parallel) {
  if (options.coding == codec::Coding::kOpen)
    return EncodeOpen(header, inventory, grid, tensors, options.embed);
  const bool by_class = options.coding == codec::Coding::kClass;
  if (by_class && !options.source.read) {
    return Fail(Code::kInvalidArgument,
                "class coding needs the served bits of the new version; give ClassSource::read or use step");
  }
  const auto where = [&](const Item& item) {
    const auto& name = inventory.tensors[item.first().tensor->tensor].name;
    return item.block.members.size() == 1
               ? "tensor " + name
               : fmt::format("joint block of {} tensors from {}", item.block.members.size(), name);
  };
  std::vector<Item> items;
  for (JointBlock& block : JoinBlocks(inventory, grid, tensors, options.most_joint_elements)) {
    items.emplace_back();
    items.back().dense = block.members.front().block->change.dense;
    items.back().block = std::move(block);
  }

  codec::Encoder encoder(options.coding, options.source.walk);
  if (by_class) {
    uint64_t index = 0;
    Bytes scratch;
    for (const Item& item : items) {
      if (item.dense) continue;
      for (const ChangedMember& member : item.block.members) {
        const Box sample = SampleOf(*member.box, ++index);
        DELTAWIRE_ASSIGN(const ByteSpan some,
                         Bits(options.source, member.tensor->tensor, sample, item.block.width, scratch));
        encoder.SampleBase(item.block.width, member.elements, some);
        encoder.SampleChanges(View(member.block->change, member.elements, item.block.width));
      }
    }
    encoder.ChooseClasses(options.source.most_classes);
  }

  parallel.For(items.size(), [&](uint64_t i) {
    Item& item = items[i];
    if (item.dense) return;
    if (item.block.members.size() > 1) item.joined = JoinChanges(item.block);
    std::vector<Bytes> scratch;
    std::vector<ByteSpan> bits;
    if (by_class) item.status = Bits(options.source, item.block, scratch, bits);
    if (item.status) item.status = encoder.Prepare(item.View(), bits, item.prepared);
  });
  for (Item& item : items) {
    if (!item.status) return Fail(item.status.error().Within(where(item)));
    if (!item.dense) encoder.Survey(item.prepared);
  }
  encoder.ChooseTables();

  std::vector<std::vector<Item>> apart(items.size());
  parallel.For(items.size(), [&](uint64_t i) {
    if (!items[i].dense) items[i].status = EncodeItem(encoder, options, items[i], apart[i]);
  });
  std::vector<const Item*> laid;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].status) return Fail(items[i].status.error().Within(where(items[i])));
    if (apart[i].empty()) laid.push_back(&items[i]);
    for (const Item& item : apart[i]) laid.push_back(&item);
  }
  EncodedUpdate update;
  format::BlockTable table;
  LayOut(std::move(laid), tensors, options.coding, table, update.blocks);
  DELTAWIRE_ASSIGN(update.frame, format::FrameUpdate(header, table, update.blocks, encoder.tables(),
                                                     inventory, options.embed));
  return update;
}

}  // namespace deltawire::delta
