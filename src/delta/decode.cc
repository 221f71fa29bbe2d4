#include "delta/decode.h"

#include "delta/value_check.h"

namespace deltawire::delta {
namespace {

Status DecodeBlock(const format::BlockEntry& entry, const format::ParsedUpdate& update,
                   const codec::Decoder& decoder, const format::InventoryTensor& tensor, DecodedBlock& out) {
  DELTAWIRE_TRY(format::CheckBlock(entry, update.blocks));
  ByteSpan stream = update.blocks.subspan(entry.offset, entry.bytes);
  out.after = entry.after;
  const auto coding = static_cast<codec::Coding>(entry.coding);
  if (coding == codec::Coding::kDense) {
    out.dense = true;
    out.dense_bits = stream;
    return {};
  }
  if (coding > codec::Coding::kClass) {
    return Fail(Code::kUnsupported,
                "coding {} is unknown to this build (0 dense, 1 absolute, 2 step, 3 class); upgrade "
                "deltawire here or "
                "publish with codings=[\"step\"]",
                entry.coding);
  }
  if (coding != codec::Coding::kAbsolute) {
    if (stream.size() < kValueCheckBytes) {
      return Fail(Code::kCorrupt, "a block of {} bytes, expected at least the check's {}", stream.size(),
                  kValueCheckBytes);
    }
    const size_t coded = stream.size() - kValueCheckBytes;
    out.value_check = LoadLe<uint32_t>(stream.data() + coded);
    stream = stream.first(coded);
  }
  DELTAWIRE_ASSIGN(out.changes,
                   decoder.Decode(coding, static_cast<uint32_t>(ElementCount(entry.box)),
                                  DtypeBytes(tensor.dtype), entry.changed, entry.uncertain, stream));
  return {};
}

}  // namespace

Result<DecodedUpdate> DecodeUpdate(ByteSpan file, const format::Inventory& inventory, const GridIndex& grid,
                                   const Parallel& parallel) {
  DELTAWIRE_ASSIGN(const format::ParsedUpdate update, format::ParseUpdate(file));
  DELTAWIRE_ASSIGN(format::BlockTable table, format::ReadTable(update, inventory));
  DELTAWIRE_ASSIGN(const codec::Decoder decoder, codec::Decoder::Open(update.entropy));

  DecodedUpdate out;
  out.header = update.header;
  out.tensors = std::move(table.tensors);
  out.blocks.resize(table.blocks.size());
  for (size_t i = 0; i < table.blocks.size(); ++i) {
    const format::BlockEntry& entry = table.blocks[i];
    const auto block = grid.Find(entry.tensor, entry.box);
    if (!block) {
      return Fail(
          Code::kUnsupported,
          "tensor {}: block {} is not one of its inventory grid; this build applies whole grid blocks only",
          inventory.tensors[entry.tensor].name, BoxText(entry.box));
    }
    out.blocks[i].tensor = entry.tensor;
    out.blocks[i].block = *block;
  }
  std::vector<Status> statuses(table.blocks.size());
  parallel.For(table.blocks.size(), [&](uint64_t i) {
    statuses[i] = DecodeBlock(table.blocks[i], update, decoder, inventory.tensors[table.blocks[i].tensor],
                              out.blocks[i]);
  });
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (statuses[i]) continue;
    return Fail(statuses[i].error().Within(fmt::format("tensor {}, block {}",
                                                       inventory.tensors[table.blocks[i].tensor].name,
                                                       BoxText(table.blocks[i].box))));
  }
  return out;
}

}  // namespace deltawire::delta
