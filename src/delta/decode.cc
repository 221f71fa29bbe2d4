#include "delta/decode.h"

#include "delta/open_update.h"
#include "delta/value_check.h"

namespace deltawire::delta {
namespace {

Status DecodeBlock(const format::BlockEntry& entry, const format::ParsedUpdate& update,
                   const codec::Decoder& decoder, uint32_t width, DecodedBlock& out) {
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
  const BlockMember& last = out.members.back();
  DELTAWIRE_ASSIGN(out.changes, decoder.Decode(coding, last.first + last.elements, width, entry.changed,
                                               entry.uncertain, stream));
  return {};
}

}  // namespace

Result<DecodedUpdate> DecodeUpdate(ByteSpan file, const format::Inventory& inventory, const GridIndex& grid,
                                   const Parallel& parallel) {
  if (format::IsOpenPatch(file)) return DecodeOpen(file, inventory, grid, parallel);
  DELTAWIRE_ASSIGN(const format::ParsedUpdate update, format::ParseUpdate(file));
  DELTAWIRE_ASSIGN(format::BlockTable table, format::ReadTable(update, inventory));
  DELTAWIRE_ASSIGN(const codec::Decoder decoder, codec::Decoder::Open(update.entropy));

  DecodedUpdate out;
  out.header = update.header;
  out.tensors = std::move(table.tensors);
  out.blocks.resize(table.blocks.size());
  for (size_t i = 0; i < table.blocks.size(); ++i) {
    DELTAWIRE_ASSIGN(out.blocks[i].members, MembersOf(table.blocks[i], inventory, grid));
    const auto coding = static_cast<codec::Coding>(table.blocks[i].coding);
    if (!update.header.more_bases.empty() && coding != codec::Coding::kDense &&
        coding != codec::Coding::kAbsolute) {
      return Fail(Code::kCorrupt, "{}: coding {} needs one base, but the update starts from {}",
                  MembersText(out.blocks[i].members, inventory, grid), table.blocks[i].coding,
                  update.header.more_bases.size() + 1);
    }
  }
  std::vector<Status> statuses(table.blocks.size());
  parallel.For(table.blocks.size(), [&](uint64_t i) {
    const uint32_t width = DtypeBytes(inventory.tensors[table.blocks[i].tensor].dtype);
    statuses[i] = DecodeBlock(table.blocks[i], update, decoder, width, out.blocks[i]);
  });
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (statuses[i]) continue;
    return Fail(statuses[i].error().Within(MembersText(out.blocks[i].members, inventory, grid)));
  }
  return out;
}

Result<PatchHead> ReadPatchHead(ByteSpan file) {
  if (format::IsOpenPatch(file)) {
    DELTAWIRE_ASSIGN(const auto patch, format::ParseOpenPatch(file));
    if (!patch.header) {
      return Fail(
          Code::kUnsupported,
          "this patch is not one of deltawire's: nothing says which base it is for; convert it with the "
          "base you know it is for (deltawire convert --base)");
    }
    DELTAWIRE_ASSIGN(auto inventory, format::ReadOpenInventory(patch));
    return PatchHead{*patch.header, std::move(inventory)};
  }
  DELTAWIRE_ASSIGN(const auto update, format::ParseUpdate(file));
  DELTAWIRE_ASSIGN(auto inventory, format::ReadInventory(update));
  return PatchHead{update.header, std::move(inventory)};
}

}  // namespace deltawire::delta
