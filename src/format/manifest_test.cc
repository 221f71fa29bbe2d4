#include "format/manifest.h"

#include <gtest/gtest.h>

#include "format/test_data.h"

namespace deltawire::format {
namespace {

AnchorManifest ExampleAnchor() {
  AnchorManifest anchor;
  anchor.run = "run7";
  anchor.number = 40;
  anchor.inventory = std::string(64, 'a');
  anchor.digest = {{1, 2}};
  anchor.manifest = std::string(64, 'b');
  anchor.files = {{.name = "model.safetensors", .bytes = 100, .sha256 = std::string(64, 'c')}};
  anchor.tensor_digests = {{.name = "digests.bin", .bytes = 64, .sha256 = std::string(64, 'd')}};
  return anchor;
}

// Replaces text and repairs the content hash, as a hostile writer would.
std::string Forge(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const size_t digits = text.find("\"content\":\"") + 11;
  text.replace(digits, 32, std::string(32, '0'));
  return text.replace(digits, 32, ToHex(Xxh3_128(AsBytes(text))));
}

// The example of docs/formats/manifest.md.
TEST(Manifest, Example) {
  EXPECT_EQ(
      ManifestText(ExampleManifest()),
      R"({"attempt":"a1","base":{"digest":"00000000000000010000000000000002","kind":"version","manifest":"b)"
      R"(bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","number":41},"content":"88dea7220)"
      R"(c808e3d87d6e8b7d27d87c9","counts":{"changed":2,"dense":2,"sent":5,"total":22,"uncertain":1},"creat)"
      R"(ed_unix_ns":1790000000000000000,"detectors":[{"detector":"snapshot","elements":22,"reason":"no opt)"
      R"(imizer","tensors":3}],"digest":"00000000000000030000000000000004","format":"deltawire.manifest","f)"
      R"(ormat_version":1,"inventory":"7cb615b6631e5a8cb4298303238a093eb7025518e358fdbdcab67e557670d196","n)"
      R"(umber":42,"parts":[{"bytes":649,"coding":"step","name":"updates/00000042/a1-part-00000.safetensors)"
      R"(","sha256":"dd25fd1460f892575b62cf87f7c00cf930599b3617c234d49ae382b3332a6cd7","table":{"bytes":76,)"
      R"("offset":573,"sha256":"34aa8e34f3bd189463966a69cce1e7f2e8ac4dfced3ecee1e208558455fd4b64"}}],"run":)"
      R"("run7","steps":1,"writer":"w0"})");
}

TEST(Manifest, RoundTrip) {
  Manifest manifest = ExampleManifest();
  EXPECT_EQ(ParseManifest(AsBytes(ManifestText(manifest))), manifest);
  manifest.tensor_digests = {
      {.name = DigestTableName(42, "a1"), .bytes = 64, .sha256 = std::string(64, 'd')}};
  manifest.base = {.kind = BaseRef::Kind::kCheckpoint, .manifest = "", .digest = {{9, 9}}};
  EXPECT_EQ(ParseManifest(AsBytes(ManifestText(manifest))), manifest);
  manifest.base = {};
  manifest.parts.clear();
  manifest.alias_of = 7;
  manifest.detectors.clear();
  EXPECT_EQ(ParseManifest(AsBytes(ManifestText(manifest))), manifest);
  manifest.number = manifest.created_unix_ns = manifest.steps = UINT64_MAX;
  EXPECT_EQ(ParseManifest(AsBytes(ManifestText(manifest))), manifest);
}

TEST(Manifest, EveryFlippedBitIsAnError) {
  for (const bool anchor : {false, true}) {
    const std::string text = anchor ? AnchorManifestText(ExampleAnchor()) : ManifestText(ExampleManifest());
    for (size_t i = 0; i < text.size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string flipped = text;
        flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
        EXPECT_FALSE(anchor ? ParseAnchorManifest(AsBytes(flipped)).has_value()
                            : ParseManifest(AsBytes(flipped)).has_value())
            << i << " " << bit;
      }
    }
    for (size_t size = 0; size < text.size(); ++size) {
      const auto cut = AsBytes(std::string_view(text).substr(0, size));
      EXPECT_FALSE(anchor ? ParseAnchorManifest(cut).has_value() : ParseManifest(cut).has_value()) << size;
    }
  }
}

TEST(Manifest, EachFieldIsCheckedBehindAValidHash) {
  const std::string text = ManifestText(ExampleManifest());
  ASSERT_TRUE(ParseManifest(AsBytes(Forge(text, "run7", "run8"))));
  const std::string sha(64, 'b');
  const std::pair<std::string, std::string> bad[] = {
      {"\"run\":\"run7\"", "\"run\":\"\""},
      {"\"run\":\"run7\"", "\"run\":\"a\\u0000\""},
      {"\"run\":\"run7\"", "\"run\":7"},
      {"\"run\":\"run7\",", ""},
      {"\"number\":42", "\"number\":42.0"},
      {"\"number\":42", "\"number\":\"42\""},
      {"\"number\":42", "\"number\":-1"},
      {"\"number\":42", "\"number\":41"},
      {"\"number\":41", "\"number\":42"},
      {"\"writer\":\"w0\"", "\"writer\":\"a/b\""},
      {"\"attempt\":\"a1\"", "\"attempt\":\"../x\""},
      {"\"steps\":1", "\"steps\":1e0"},
      {"\"created_unix_ns\":17", "\"created_unix_ns\":-17"},
      {"\"kind\":\"version\"", "\"kind\":\"other\""},
      {sha, sha + "b"},
      {sha, std::string(64, 'B')},
      {"\"base\":{", "\"base\":[],\"bose\":{"},
      {"\"parts\":[", "\"parts\":{},\"ports\":["},
      {"\"parts\":[", "\"parts\":[1,"},
      {"updates/00000042/a1-part", "/updates/00000042/a1-part"},
      {"updates/00000042/a1-part", "../updates/00000042/a1-part"},
      {"updates/00000042/a1-part", "updates//a1-part"},
      {"updates/00000042/a1-part", "updates\\\\a1-part"},
      {"updates/00000042/a1-part", "updates/\\u0000-part"},
      {"\"coding\":\"step\"", "\"coding\":\"\""},
      {"\"offset\":", "\"offset\":1844674407370955"},
      {"\"offset\":", "\"offset\":9"},
      {"\"changed\":2", "\"changed\":23"},
      {"\"sent\":5", "\"sent\":23"},
      {"\"total\":22", "\"total\":18446744073709551616"},
      {"\"detector\":\"snapshot\"", "\"detector\":\"\""},
      {"\"elements\":22", "\"elements\":null"},
      {"\"format\":\"deltawire.manifest\"", "\"format\":\"deltawire.anchor\""},
      {"\"attempt\":", "\"alias_of\":3,\"attempt\":"},
      {"\"attempt\":", "\"tensor_digests\":[],\"attempt\":"},
      {"\"attempt\":", "\"attempt\":\"a1\",\"attempt\":"}};
  for (const auto& [from, to] : bad) {
    const auto parsed = ParseManifest(AsBytes(Forge(text, from, to)));
    ASSERT_FALSE(parsed) << from << " -> " << to;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt) << parsed.error().message();
    EXPECT_EQ(parsed.error().message().find("content"), std::string::npos) << parsed.error().message();
  }
}

TEST(Manifest, UnknownFieldsAreIgnored) {
  const std::string text =
      Forge(ManifestText(ExampleManifest()), "\"attempt\":", "\"a_new_field\":[-1.5,{}],\"attempt\":");
  EXPECT_EQ(ParseManifest(AsBytes(text)), ExampleManifest());
}

TEST(Manifest, OtherVersionNamesBoth) {
  const std::string text =
      Forge(ManifestText(ExampleManifest()), "\"format_version\":1", "\"format_version\":9");
  const auto parsed = ParseManifest(AsBytes(text));
  EXPECT_EQ(parsed.error().code(), Code::kUnsupported);
  EXPECT_NE(parsed.error().message().find("version 9; this build reads version 1"), std::string::npos);
}

TEST(Manifest, ContentIsWrittenOnce) {
  const std::string text = ManifestText(ExampleManifest());
  const size_t at = text.find("\"content\":");
  std::string spaced = text;
  spaced.insert(at + 10, " ");
  EXPECT_FALSE(ParseManifest(AsBytes(spaced)));
  std::string nested = text;
  nested.replace(nested.find("\"reason\":\"no"), 0, text.substr(at, 46));
  EXPECT_FALSE(ParseManifest(AsBytes(nested)));
  EXPECT_FALSE(ParseManifest(AsBytes(Forge(text, "\"run7\"", "\"run8\"").replace(at + 11, 32, ""))));
}

TEST(Manifest, DuplicatePartsAreRefused) {
  Manifest manifest = ExampleManifest();
  manifest.parts.push_back(manifest.parts[0]);
  EXPECT_EQ(CheckManifest(manifest).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(ParseManifest(AsBytes(ManifestText(manifest))).error().code(), Code::kCorrupt);
}

TEST(Manifest, HostileText) {
  EXPECT_FALSE(ParseManifest({}));
  EXPECT_FALSE(ParseManifest(AsBytes("{}")));
  EXPECT_FALSE(ParseManifest(AsBytes("[]")));
  EXPECT_FALSE(ParseManifest(AsBytes(std::string(100000, '['))));
  const uint8_t byte = ' ';
  EXPECT_FALSE(ParseManifest(ByteSpan(&byte, size_t{1} << 30)));
}

TEST(Manifest, TextThatIsNotUtf8NeverThrows) {
  Manifest manifest = ExampleManifest();
  manifest.detectors[0].reason = "\xff";
  EXPECT_FALSE(CheckManifest(manifest));
  EXPECT_FALSE(ManifestText(manifest).empty());
}

TEST(AnchorManifest, RoundTripAndChecks) {
  const AnchorManifest anchor = ExampleAnchor();
  const std::string text = AnchorManifestText(anchor);
  EXPECT_EQ(ParseAnchorManifest(AsBytes(text)), anchor);
  EXPECT_EQ(ParseManifest(AsBytes(text)).error().code(), Code::kCorrupt);
  for (const auto& [from, to] : {std::pair{"model.safetensors", "x/model.safetensors"},
                                 {"model.safetensors", ".."},
                                 {"\"bytes\":100", "\"bytes\":1e2"},
                                 {"\"files\":[", "\"files\":0,\"f\":["},
                                 {"\"number\":40", "\"number\":true"},
                                 {"bbbb", "bbb"},
                                 {"\"run\":\"run7\"", "\"run\":\"\""}}) {
    const auto parsed = ParseAnchorManifest(AsBytes(Forge(text, from, to)));
    ASSERT_FALSE(parsed) << to;
    EXPECT_EQ(parsed.error().code(), Code::kCorrupt);
  }
  AnchorManifest twice = anchor;
  twice.files.push_back(twice.files[0]);
  EXPECT_FALSE(CheckAnchorManifest(twice));
}

}  // namespace
}  // namespace deltawire::format
