#include "format/update_file.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "format/safetensors.h"
#include "format/test_data.h"

namespace deltawire::format {
namespace {

BuiltUpdate Example(EmbedInventory embed = EmbedInventory::kNo) {
  return BuildUpdate(ExampleHeader(), ExampleTable(), kExampleBlocks, kExampleEntropy, ExampleInventory(),
                     embed)
      .value();
}

// The file with its header text changed and nothing else repaired.
Bytes WithHeaderText(const Bytes& file, std::string_view from, std::string_view to) {
  const uint64_t n = LoadLe<uint64_t>(file.data());
  std::string text(AsText(ByteSpan(file).subspan(8, n)));
  text.replace(text.find(from), from.size(), to);
  Bytes out(8 + text.size());
  StoreLe<uint64_t>(text.size(), out.data());
  std::copy(text.begin(), text.end(), out.begin() + 8);
  out.insert(out.end(), file.begin() + 8 + n, file.end());
  return out;
}

bool Same(const ParsedUpdate& a, const ParsedUpdate& b) {
  const auto equal = [](ByteSpan x, ByteSpan y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end());
  };
  return a.header == b.header && equal(a.blocks, b.blocks) && equal(a.entropy, b.entropy) &&
         equal(a.table, b.table) && a.inventory.has_value() == b.inventory.has_value() &&
         (!a.inventory || equal(*a.inventory, *b.inventory)) && a.blocks_offset == b.blocks_offset &&
         a.table_offset == b.table_offset;
}

// The example of docs/formats/update.md.
TEST(UpdateFile, Example) {
  const BuiltUpdate update = Example();
  const uint64_t n = LoadLe<uint64_t>(update.file.data());
  EXPECT_EQ(
      AsText(ByteSpan(update.file).subspan(8, n)),
      R"({"__metadata__":{"base":"41","base_digest":"00000000000000010000000000000002","content":"aa9a7da17)"
      R"(8dfbb597da54043887d1aee","digest":"00000000000000030000000000000004","format":"deltawire.update",")"
      R"(format_version":"1","inventory":"7cb615b6631e5a8cb4298303238a093eb7025518e358fdbdcab67e557670d196")"
      R"(,"number":"42","run":"run7","writer":"w0"},"deltawire.blocks":{"dtype":"U8","shape":[11],"data_off)"
      R"(sets":[0,11]},"deltawire.entropy":{"dtype":"U8","shape":[2],"data_offsets":[11,13]},"deltawire.tab)"
      R"(le":{"dtype":"U8","shape":[76],"data_offsets":[13,89]}}       )");
  EXPECT_EQ(update.table.offset, 8 + n + 13);
  EXPECT_EQ(update.table.offset + update.table.bytes, update.file.size());
  EXPECT_EQ(update.table.sha256, ToHex(Sha256(ByteSpan(update.file).subspan(update.table.offset))));
}

TEST(UpdateFile, RoundTrip) {
  for (const EmbedInventory embed : {EmbedInventory::kNo, EmbedInventory::kYes}) {
    const BuiltUpdate update = Example(embed);
    const auto parsed = ParseUpdate(update.file);
    ASSERT_TRUE(parsed) << parsed.error().message();
    EXPECT_EQ(parsed->header, ExampleHeader());
    EXPECT_TRUE(std::equal(parsed->blocks.begin(), parsed->blocks.end(), kExampleBlocks.begin(),
                           kExampleBlocks.end()));
    EXPECT_EQ(parsed->table_offset, update.table.offset);
    EXPECT_EQ(parsed->table.size(), update.table.bytes);
    EXPECT_EQ(update.file.data() + parsed->blocks_offset, parsed->blocks.data());
    EXPECT_EQ(ReadTable(*parsed, ExampleInventory()), ExampleTable());
    const auto inventory = ReadInventory(*parsed);
    if (embed == EmbedInventory::kYes) {
      EXPECT_EQ(inventory, ExampleInventory());
    } else {
      EXPECT_EQ(inventory.error().code(), Code::kNotFound);
    }
  }
}

TEST(UpdateFile, FrameIsTheFileAroundTheBlocks) {
  const UpdateFrame frame =
      FrameUpdate(ExampleHeader(), ExampleTable(), kExampleBlocks, kExampleEntropy, ExampleInventory())
          .value();
  Bytes joined = frame.head;
  joined.insert(joined.end(), kExampleBlocks.begin(), kExampleBlocks.end());
  joined.insert(joined.end(), frame.tail.begin(), frame.tail.end());
  EXPECT_EQ(joined, Example().file);
  EXPECT_EQ(frame.table, Example().table);
}

TEST(UpdateFile, AnEmptyUpdateIsAnUpdate) {
  UpdateHeader header = ExampleHeader();
  header.base.reset();
  header.base_digest.reset();
  header.number = 0;
  const BuiltUpdate update = BuildUpdate(header, {}, {}, {}, ExampleInventory()).value();
  const auto parsed = ParseUpdate(update.file);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->header, header);
  EXPECT_TRUE(ReadTable(*parsed, ExampleInventory())->blocks.empty());
}

TEST(UpdateFile, TruncationAtEveryLength) {
  const Bytes file = Example(EmbedInventory::kYes).file;
  for (size_t size = 0; size < file.size(); ++size) {
    const Bytes cut(file.begin(), file.begin() + size);
    const auto parsed = ParseUpdate(cut);
    ASSERT_FALSE(parsed) << size;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt) << size;
  }
  Bytes longer = file;
  longer.push_back(0);
  EXPECT_EQ(ParseUpdate(longer).error().code(), Code::kCorrupt);
}

TEST(UpdateFile, EveryFlippedBitIsAnErrorOrTheIdenticalResult) {
  const Bytes file = Example(EmbedInventory::kYes).file;
  const ParsedUpdate original = ParseUpdate(file).value();
  int identical = 0;
  for (size_t i = 0; i < file.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes flipped = file;
      flipped[i] ^= static_cast<uint8_t>(1 << bit);
      const auto parsed = ParseUpdate(flipped);
      if (!parsed) continue;
      EXPECT_TRUE(Same(*parsed, original)) << "byte " << i << " bit " << bit;
      ++identical;
    }
  }
  EXPECT_LE(identical, 8 * 7);  // padding spaces that become other white space
}

TEST(UpdateFile, OtherVersionNamesBoth) {
  const Bytes file = WithHeaderText(Example().file, "\"format_version\":\"1\"", "\"format_version\":\"12\"");
  const auto parsed = ParseUpdate(file);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code(), Code::kUnsupported);
  EXPECT_NE(parsed.error().message().find("version 12; this build reads version 1"), std::string::npos);
}

TEST(UpdateFile, AnyChangedTextBreaksTheContentHash) {
  const Bytes file = Example().file;
  for (const auto& [from, to] : {std::pair{"\"run\":\"run7\"", "\"run\":\"run8\""},
                                 {"\"number\":\"42\"", "\"number\":\"43\""},
                                 {"\"base\":\"41\"", "\"base\":\"none\""},
                                 {"\"writer\":\"w0\"", "\"writer\":\"w1\""},
                                 {"\"writer\"", "\"written\""},
                                 {"\"run\":", "\"extra\":\"\",\"run\":"}}) {
    const auto parsed = ParseUpdate(WithHeaderText(file, from, to));
    ASSERT_FALSE(parsed) << to;
    EXPECT_NE(parsed.error().message().find("content hash"), std::string::npos) << parsed.error().message();
  }
}

TEST(UpdateFile, SpacingOfTheHeaderIsNotContent) {
  const Bytes file = Example().file;
  const auto parsed = ParseUpdate(WithHeaderText(file, "\"run\":", " \"run\" : "));
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->header, ExampleHeader());
}

// A container with a valid content hash but arbitrary metadata and tensors, made as a hostile writer would.
Bytes Forge(std::map<std::string, std::string> metadata, std::vector<std::pair<std::string, Dtype>> tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, dtype] : tensors)
    entries.push_back({.name = name, .dtype = dtype, .shape = {8 / DtypeBytes(dtype)}});
  entries = LayoutInOrder(entries).value();
  std::string text;
  const auto add = [&text](std::string_view part) {
    text += part;
    text += '\0';
  };
  for (const auto& [key, value] : metadata) {
    add(key);
    add(value);
  }
  std::map<std::string, SafetensorsEntry> sorted;
  for (const auto& entry : entries) sorted[entry.name] = entry;
  for (const auto& [name, entry] : sorted) {
    add(name);
    add(DtypeName(entry.dtype));
    add(ShapeText(entry.shape));
    text.append(reinterpret_cast<const char*>(&entry.begin), 8);
    text.append(reinterpret_cast<const char*>(&entry.end), 8);
  }
  const uint64_t data_bytes = entries.empty() ? 0 : entries.back().end;
  text.append(data_bytes, '\0');
  metadata["content"] = ToHex(Xxh3_128(AsBytes(text)));
  Bytes file = WriteSafetensorsHeader(entries, metadata).value();
  file.resize(file.size() + data_bytes);
  return file;
}

TEST(UpdateFile, EachFieldIsCheckedBehindAValidHash) {
  const std::map<std::string, std::string> good = {{"format", "deltawire.update"},
                                                   {"format_version", "1"},
                                                   {"run", "r"},
                                                   {"number", "2"},
                                                   {"base", "1"},
                                                   {"writer", "w"},
                                                   {"inventory", std::string(64, '0')},
                                                   {"base_digest", std::string(32, '0')},
                                                   {"digest", std::string(32, '0')}};
  const std::vector<std::pair<std::string, Dtype>> sections = {
      {"deltawire.blocks", Dtype::kU8}, {"deltawire.entropy", Dtype::kU8}, {"deltawire.table", Dtype::kU8}};
  ASSERT_TRUE(ParseUpdate(Forge(good, sections)));
  for (const auto& [key, value] : good) {
    auto metadata = good;
    metadata.erase(key);
    const auto parsed = ParseUpdate(Forge(metadata, sections));
    ASSERT_FALSE(parsed) << key;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt);
    EXPECT_NE(parsed.error().message().find(key), std::string::npos) << parsed.error().message();
  }
  const std::pair<const char*, std::string> bad[] = {
      {"format", "deltawire.manifest"},
      {"run", ""},
      {"run", "a\nb"},
      {"run", std::string("a\0b", 3)},
      {"number", ""},
      {"number", "-1"},
      {"number", "2.0"},
      {"number", "02"},
      {"number", "18446744073709551616"},
      {"base", "2"},
      {"base", "NONE"},
      {"base", ""},
      {"writer", ""},
      {"writer", "a/b"},
      {"inventory", "00"},
      {"inventory", std::string(64, 'G')},
      {"digest", "none"},
      {"base_digest", std::string(32, 'A')},
      {"more_bases", ""},
      {"more_bases", std::string(31, '1')},
      {"more_bases", std::string(32, '0')},
      {"more_bases", std::string(32, '1') + " "},
      {"more_bases", std::string(32, '1') + "," + std::string(32, '2')},
      {"more_bases", std::string(32, '1') + " " + std::string(32, '1')}};
  for (const auto& [key, value] : bad) {
    auto metadata = good;
    metadata[key] = value;
    const auto parsed = ParseUpdate(Forge(metadata, sections));
    ASSERT_FALSE(parsed) << key << " " << value;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt) << key;
  }
  auto several = good;
  several["more_bases"] = std::string(32, '1') + " " + std::string(32, '2');
  const auto parsed = ParseUpdate(Forge(several, sections));
  ASSERT_TRUE(parsed);
  for (const char digit : {'0', '1', '2'}) {
    EXPECT_TRUE(StartsFrom(parsed->header, *Digest::FromHex(std::string(32, digit))));
  }
  EXPECT_FALSE(StartsFrom(parsed->header, *Digest::FromHex(std::string(32, '3'))));
  several["base_digest"] = "none";
  EXPECT_EQ(ParseUpdate(Forge(several, sections)).error().code(), Code::kCorrupt);
  using Sections = std::vector<std::pair<std::string, Dtype>>;
  for (const Sections& odd :
       {Sections{}, Sections{sections[0], sections[1]}, Sections{sections[1], sections[0], sections[2]},
        Sections{sections[0], sections[1], {"deltawire.other", Dtype::kU8}, sections[2]},
        Sections{sections[0], {"deltawire.inventory", Dtype::kU8}, sections[1], sections[2]},
        Sections{sections[0], sections[1], {"deltawire.table", Dtype::kI8}},
        Sections{sections[0], sections[1], sections[2], {"w", Dtype::kU8}}}) {
    EXPECT_EQ(ParseUpdate(Forge(good, odd)).error().code(), Code::kCorrupt);
  }
}

TEST(UpdateFile, ReadTableWantsTheRightInventoryAndEntropy) {
  const BuiltUpdate update = Example();
  ParsedUpdate parsed = ParseUpdate(update.file).value();
  Inventory other = ExampleInventory();
  other.cast_rule = "other";
  EXPECT_EQ(ReadTable(parsed, other).error().code(), Code::kMismatch);
  const Bytes entropy = {0xE0, 0xE2};
  parsed.entropy = entropy;
  EXPECT_EQ(ReadTable(parsed, ExampleInventory()).error().code(), Code::kCorrupt);
}

TEST(UpdateFile, BuilderRefuses) {
  const auto build = [](const UpdateHeader& header, const BlockTable& table) {
    return BuildUpdate(header, table, kExampleBlocks, kExampleEntropy, ExampleInventory());
  };
  const std::function<void(UpdateHeader&)> changes[] = {
      [](UpdateHeader& h) { h.run.clear(); }, [](UpdateHeader& h) { h.writer += " b"; },
      [](UpdateHeader& h) { h.base = 42; }, [](UpdateHeader& h) { h.inventory = std::string(64, '0'); },
      [](UpdateHeader& h) { h.run += '\xff'; }};
  for (const auto& change : changes) {
    UpdateHeader header = ExampleHeader();
    change(header);
    EXPECT_EQ(build(header, ExampleTable()).error().code(), Code::kInvalidArgument);
  }
  BlockTable table = ExampleTable();
  table.blocks[0].offset = 1;
  EXPECT_EQ(build(ExampleHeader(), table).error().code(), Code::kInvalidArgument);
}

TEST(UpdateFile, EightTensorsFitTheBudget) {
  // The shape of shared/data/steady: everything but streams and entropy tables within 1.6 KB.
  Inventory inventory = {.cast_rule = "floating parameters to BF16", .tensors = {}};
  for (const char* name :
       {"model.layers.3.input_layernorm.weight", "model.layers.3.mlp.down_proj.weight",
        "model.layers.3.mlp.gate_proj.weight", "model.layers.3.mlp.up_proj.weight",
        "model.layers.3.self_attn.k_proj.weight", "model.layers.3.self_attn.o_proj.weight",
        "model.layers.3.self_attn.q_proj.weight", "model.layers.3.self_attn.v_proj.weight"}) {
    inventory.tensors.push_back({.name = name, .shape = {1536, 576}, .cast = "f32->bf16"});
  }
  BlockTable table;
  SeededRng rng(3);
  for (uint32_t i = 0; i < 8; ++i) {
    const Digest digest = {{rng.Next(), rng.Next()}};
    table.tensors.push_back({i, digest});
    table.blocks.push_back({.tensor = i,
                            .box = WholeBox({1536, 576}),
                            .coding = 2,
                            .bytes = 1500,
                            .hash = rng.Next(),
                            .changed = 1175,
                            .uncertain = 90,
                            .after = digest});
  }
  AssignOffsets(table);
  const UpdateHeader header = {.run = rng.HexId(16),
                               .number = 12,
                               .base = 11,
                               .writer = rng.HexId(16),
                               .inventory = InventoryHash(inventory),
                               .base_digest = Digest{{rng.Next(), rng.Next()}},
                               .digest = {{rng.Next(), rng.Next()}}};
  const Bytes blocks(12000);
  const auto update = BuildUpdate(header, table, blocks, {}, inventory, EmbedInventory::kYes);
  ASSERT_TRUE(update) << update.error().message();
  const uint64_t overhead = update->file.size() - blocks.size();
  RecordProperty("overhead_bytes", static_cast<int>(overhead));
  EXPECT_LE(overhead, 1600u);
}

}  // namespace
}  // namespace deltawire::format
