#include "format/byte_map.h"

#include <gtest/gtest.h>

#include "format/digests.h"
#include "format/safetensors.h"
#include "format/test_data.h"

namespace deltawire::format {
namespace {

void ExpectTiles(const ByteMap& map, uint64_t size) {
  uint64_t at = 0;
  for (const ByteRange& range : map.ranges) {
    EXPECT_EQ(range.begin, at) << range.meaning;
    EXPECT_GE(range.end, range.begin) << range.meaning;
    EXPECT_FALSE(range.meaning.empty());
    EXPECT_EQ(range.meaning.find('\n'), std::string::npos) << range.meaning;
    at = range.end;
  }
  EXPECT_EQ(at, size);
}

ByteMap Mapped(ByteSpan file, const Inventory* inventory = nullptr) {
  auto map = MapBytes(file, inventory);
  if (!map) ADD_FAILURE() << map.error().message();
  ByteMap result = map ? *std::move(map) : ByteMap{};
  ExpectTiles(result, file.size());
  return result;
}

std::string MeaningAt(const ByteMap& map, uint64_t offset) {
  for (const ByteRange& range : map.ranges)
    if (range.begin <= offset && offset < range.end) return range.meaning;
  return "";
}

Bytes ExampleUpdate(EmbedInventory embed) {
  return BuildUpdate(ExampleHeader(), ExampleTable(), kExampleBlocks, kExampleEntropy, ExampleInventory(),
                     embed)
      .value()
      .file;
}

TEST(ByteMap, PatchWithItsInventory) {
  const Bytes file = ExampleUpdate(EmbedInventory::kYes);
  const ByteMap map = Mapped(file);
  EXPECT_EQ(map.kind, FileKind::kUpdate);
  EXPECT_EQ(map.update, ExampleHeader());
  EXPECT_EQ(map.inventory, ExampleInventory());
  EXPECT_EQ(map.table, ExampleTable());
  EXPECT_NE(MeaningAt(map, 0).find("header length"), std::string::npos);
  EXPECT_NE(MeaningAt(map, map.blocks_offset).find("\"mlp.weight\", block [2:4, 0:3]"), std::string::npos);
  EXPECT_NE(MeaningAt(map, map.blocks_offset + 3).find("\"norm.weight\", block [0:2]"), std::string::npos);
  EXPECT_NE(MeaningAt(map, file.size() - 1).find("row of tensor \"norm.weight\""), std::string::npos);
}

TEST(ByteMap, UpdateWithAndWithoutTheRunsInventory) {
  const Bytes file = ExampleUpdate(EmbedInventory::kNo);
  EXPECT_FALSE(Mapped(file).table);
  const Inventory inventory = ExampleInventory();
  EXPECT_EQ(Mapped(file, &inventory).table, ExampleTable());
  const Inventory other = {.cast_rule = "", .tensors = {}};
  const auto wrong = MapBytes(file, &other);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), Code::kMismatch);
}

TEST(ByteMap, JsonFilesMemberByMember) {
  const std::string manifest = ManifestText(ExampleManifest());
  const ByteMap map = Mapped(AsBytes(manifest));
  EXPECT_EQ(map.kind, FileKind::kManifest);
  EXPECT_NE(MeaningAt(map, manifest.find("\"number\":42")).find("version number = 42"), std::string::npos);
  EXPECT_EQ(MeaningAt(map, manifest.size() - 1), "JSON: closing brace");

  EXPECT_EQ(Mapped(AsBytes(InventoryText(ExampleInventory()))).kind, FileKind::kInventory);
  AnchorManifest anchor;
  anchor.run = "run7";
  anchor.inventory = std::string(64, 'a');
  anchor.manifest = std::string(64, 'b');
  EXPECT_EQ(Mapped(AsBytes(AnchorManifestText(anchor))).kind, FileKind::kAnchorManifest);
}

TEST(ByteMap, DigestTable) {
  const Digest digests[] = {{{1, 2}}, {{3, 4}}};
  const Bytes file = DigestTableBytes(digests);
  const ByteMap map = Mapped(file);
  EXPECT_EQ(map.kind, FileKind::kDigestTable);
  EXPECT_EQ(map.ranges.size(), 5u);
  EXPECT_FALSE(MapBytes(ByteSpan(file).first(file.size() - 1)));
  EXPECT_FALSE(MapBytes(ByteSpan(file).first(7)));
}

TEST(ByteMap, SafetensorsWithOddNamesEmptyTensorsAndPadding) {
  const std::vector<SafetensorsEntry> entries = {
      {.name = "a\"}, {\\", .dtype = Dtype::kU8, .shape = {3}, .begin = 0, .end = 3},
      {.name = "empty\n", .dtype = Dtype::kF32, .shape = {0, 7}, .begin = 3, .end = 3},
      {.name = "scalar", .dtype = Dtype::kF64, .shape = {}, .begin = 3, .end = 11}};
  Bytes file = *WriteSafetensorsHeader(entries, {{"fo]o", "b{ar"}});
  file.resize(file.size() + 11);
  const ByteMap map = Mapped(file);
  EXPECT_EQ(map.kind, FileKind::kSafetensors);
  EXPECT_NE(MeaningAt(map, file.size() - 1).find("tensor \"scalar\": F64"), std::string::npos);
}

TEST(ByteMap, EveryTruncationOfAnUpdateIsAnError) {
  const Bytes file = ExampleUpdate(EmbedInventory::kYes);
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_FALSE(MapBytes(ByteSpan(file).first(size))) << size;
}

TEST(ByteMap, StrangersAreErrors) {
  for (const std::string_view text : {"", "{", "{}", "[]", "hello, world", "{\"format\":\"other\"}", "DWDT"})
    EXPECT_FALSE(KindOf(AsBytes(text)) && MapBytes(AsBytes(text))) << text;
}

}  // namespace
}  // namespace deltawire::format
