#include "delta/decode.h"

#include "delta/open_update.h"
#include "delta/value_check.h"

namespace deltawire::delta {
namespace {

Status DecodeBlock(const FetchedBlock& fetched, const codec::Decoder& decoder, uint32_t width,
                   DecodedBlock& out) {
  const format::BlockEntry& entry = *fetched.entry;
  ByteSpan stream = fetched.bytes;
  DELTAWIRE_TRY(format::CheckBlockBytes(entry, stream));
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

Result<std::vector<DecodedBlock>> DecodeBlocks(std::span<const FetchedBlock> fetched, ByteSpan entropy,
                                               const format::Inventory& inventory, const GridIndex& grid,
                                               const Parallel& parallel) {
  DELTAWIRE_ASSIGN(const codec::Decoder decoder, codec::Decoder::Open(entropy));
  std::vector<DecodedBlock> blocks(fetched.size());
  for (size_t i = 0; i < fetched.size(); ++i) {
    DELTAWIRE_ASSIGN(blocks[i].members, MembersOf(*fetched[i].entry, inventory, grid));
  }
  std::vector<Status> statuses(fetched.size());
  parallel.For(fetched.size(), [&](uint64_t i) {
    const uint32_t width = DtypeBytes(inventory.tensors[fetched[i].entry->tensor].dtype);
    statuses[i] = DecodeBlock(fetched[i], decoder, width, blocks[i]);
  });
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (statuses[i]) continue;
    return Fail(statuses[i].error().Within(MembersText(blocks[i].members, inventory, grid)));
  }
  return blocks;
}

Result<DecodedUpdate> DecodeUpdate(ByteSpan file, const format::Inventory& inventory, const GridIndex& grid,
                                   const Parallel& parallel) {
  if (format::IsOpenPatch(file)) return DecodeOpen(file, inventory, grid, parallel);
  DELTAWIRE_ASSIGN(const format::ParsedUpdate update, format::ParseUpdate(file));
  DELTAWIRE_ASSIGN(format::BlockTable table, format::ReadTable(update, inventory));
  std::vector<FetchedBlock> fetched;
  fetched.reserve(table.blocks.size());
  for (const format::BlockEntry& entry : table.blocks) {
    const auto coding = static_cast<codec::Coding>(entry.coding);
    // Of an unknown coding nobody here can say that it needs one base: DecodeBlock names it.
    if (!update.header.more_bases.empty() &&
        (coding == codec::Coding::kStep || coding == codec::Coding::kClass)) {
      return Fail(Code::kCorrupt, "{}: coding {} needs one base, but the update starts from {}",
                  format::BlockName(entry, inventory), entry.coding, update.header.more_bases.size() + 1);
    }
    fetched.push_back({&entry, format::BlockBytes(entry, update.blocks)});
  }
  DecodedUpdate out;
  out.header = update.header;
  DELTAWIRE_ASSIGN(out.blocks, DecodeBlocks(fetched, update.entropy, inventory, grid, parallel));
  out.tensors = std::move(table.tensors);
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
