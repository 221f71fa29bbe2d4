#include "delta/encode.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
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

struct Item {
  const ChangedTensor* tensor;
  const ChangedBlock* block;
  const Box* box;
  uint32_t elements;
  uint32_t width;
  codec::PreparedBlock prepared;
  Bytes bytes;
  bool dense;
  Status status;
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
                                   codec::Coding coding, format::EmbedInventory embed,
                                   const Parallel& parallel, const ClassSource& source) {
  const bool by_class = coding == codec::Coding::kClass;
  if (by_class && !source.read) {
    return Fail(Code::kInvalidArgument,
                "class coding needs the served bits of the new version; give ClassSource::read or use step");
  }
  std::vector<Item> items;
  format::BlockTable table;
  codec::Encoder encoder(coding, source.walk);
  Bytes scratch;
  for (const ChangedTensor& tensor : tensors) {
    table.tensors.push_back({tensor.tensor, tensor.after});
    const uint32_t width = DtypeBytes(inventory.tensors[tensor.tensor].dtype);
    for (const ChangedBlock& block : tensor.blocks) {
      const Box& box = grid.boxes(tensor.tensor)[block.block];
      const bool dense = block.change.dense;
      items.push_back(
          {&tensor, &block, &box, static_cast<uint32_t>(ElementCount(box)), width, {}, {}, dense, {}});
      if (!by_class || dense) continue;
      const Box sample = SampleOf(box, items.size());
      DELTAWIRE_ASSIGN(const ByteSpan some, Bits(source, tensor.tensor, sample, width, scratch));
      encoder.SampleBase(width, items.back().elements, some);
      encoder.SampleChanges(View(block.change, items.back().elements, width));
    }
  }
  if (by_class) encoder.ChooseClasses(source.most_classes);

  parallel.For(items.size(), [&](uint64_t i) {
    Item& item = items[i];
    if (item.dense) return;
    Bytes copy;
    ByteSpan bits;
    if (by_class) {
      auto found = Bits(source, item.tensor->tensor, *item.box, item.width, copy);
      if (!found) {
        item.status = Fail(std::move(found).error());
        return;
      }
      bits = *found;
    }
    item.status = encoder.Prepare(View(item.block->change, item.elements, item.width), bits, item.prepared);
  });
  for (Item& item : items) {
    if (!item.status) {
      const auto& name = inventory.tensors[item.tensor->tensor].name;
      return Fail(std::move(item.status).error().Within("tensor " + name));
    }
    if (!item.dense) encoder.Survey(item.prepared);
  }
  encoder.ChooseTables();

  parallel.For(items.size(), [&](uint64_t i) {
    Item& item = items[i];
    if (item.dense) return;
    const BlockChange& change = item.block->change;
    std::vector<uint32_t> populations;
    item.status =
        encoder.Encode(View(change, item.elements, item.width), item.prepared, item.bytes, populations);
    item.prepared = {};
    if (!item.status) return;
    if (coding != codec::Coding::kAbsolute) {
      AppendLe(ValueCheck(change.new_bits, change.uncertain_new, populations), item.bytes);
    }
    const uint64_t raw = uint64_t{item.elements} * item.width;
    if (item.bytes.size() <= raw) return;
    if (change.changed.size() + change.uncertain.size() == item.elements) {
      item.bytes.resize(raw);
      ScatterAll(change, item.width, item.bytes);
      item.dense = true;
    } else if (source.read) {
      item.bytes.resize(raw);
      item.status = source.read(item.tensor->tensor, *item.box, item.bytes);
      item.dense = true;
    }
  });

  EncodedUpdate update;
  for (Item& item : items) {
    const auto& name = inventory.tensors[item.tensor->tensor].name;
    if (!item.status) return Fail(item.status.error().Within("tensor " + name));
    const BlockChange& change = item.block->change;
    const ByteSpan bytes = change.dense ? ByteSpan(change.dense_bits) : ByteSpan(item.bytes);
    table.blocks.push_back(
        {.tensor = item.tensor->tensor,
         .box = *item.box,
         .coding = static_cast<uint8_t>(item.dense ? codec::Coding::kDense : coding),
         .offset = update.blocks.size(),
         .bytes = bytes.size(),
         .hash = Xxh3_64(bytes),
         .changed = item.dense ? item.elements : static_cast<uint32_t>(change.changed.size()),
         .uncertain = item.dense ? 0 : static_cast<uint32_t>(change.uncertain.size()),
         .after = item.block->after});
    if (coding == codec::Coding::kAbsolute && !item.dense) {
      table.blocks.back().changed += table.blocks.back().uncertain;
      table.blocks.back().uncertain = 0;
    }
    update.blocks.insert(update.blocks.end(), bytes.begin(), bytes.end());
    item.bytes = {};
  }
  DELTAWIRE_ASSIGN(update.frame,
                   format::FrameUpdate(header, table, update.blocks, encoder.tables(), inventory, embed));
  return update;
}

}  // namespace deltawire::delta
