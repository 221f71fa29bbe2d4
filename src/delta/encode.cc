#include "delta/encode.h"

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
  Bytes stream;
  Status status;
};

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
                                   const Parallel& parallel) {
  std::vector<Item> items;
  format::BlockTable table;
  codec::Encoder encoder(coding);
  for (const ChangedTensor& tensor : tensors) {
    table.tensors.push_back({tensor.tensor, tensor.after});
    const uint32_t width = DtypeBytes(inventory.tensors[tensor.tensor].dtype);
    for (const ChangedBlock& block : tensor.blocks) {
      const Box& box = grid.boxes(tensor.tensor)[block.block];
      items.push_back({&tensor, &block, &box, static_cast<uint32_t>(ElementCount(box)), width, {}, {}});
      if (!block.change.dense) encoder.Survey(View(block.change, items.back().elements, width));
    }
  }
  encoder.ChooseTables();

  parallel.For(items.size(), [&](uint64_t i) {
    Item& item = items[i];
    if (item.block->change.dense) return;
    const BlockChange& change = item.block->change;
    item.status = encoder.Encode(View(change, item.elements, item.width), item.stream);
    if (coding == codec::Coding::kStep) {
      AppendLe(ValueCheck(change.new_bits, change.uncertain_new), item.stream);
    }
  });

  EncodedUpdate update;
  for (Item& item : items) {
    const auto& name = inventory.tensors[item.tensor->tensor].name;
    if (!item.status) return Fail(item.status.error().Within("tensor " + name));
    const BlockChange& change = item.block->change;
    const ByteSpan bytes = change.dense ? ByteSpan(change.dense_bits) : ByteSpan(item.stream);
    table.blocks.push_back(
        {.tensor = item.tensor->tensor,
         .box = *item.box,
         .coding = static_cast<uint8_t>(change.dense ? codec::Coding::kDense : coding),
         .offset = update.blocks.size(),
         .bytes = bytes.size(),
         .hash = Xxh3_64(bytes),
         .changed = change.dense ? item.elements : static_cast<uint32_t>(change.changed.size()),
         .uncertain = static_cast<uint32_t>(change.uncertain.size()),
         .after = item.block->after});
    if (coding == codec::Coding::kAbsolute && !change.dense) {
      table.blocks.back().changed += table.blocks.back().uncertain;
      table.blocks.back().uncertain = 0;
    }
    update.blocks.insert(update.blocks.end(), bytes.begin(), bytes.end());
    item.stream = {};
  }
  DELTAWIRE_ASSIGN(update.frame,
                   format::FrameUpdate(header, table, update.blocks, encoder.tables(), inventory, embed));
  return update;
}

}  // namespace deltawire::delta
