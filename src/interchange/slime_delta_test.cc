#include "interchange/slime_delta.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "interchange/zstd_frame.h"

namespace deltawire::interchange {
namespace {

// The vector of docs/interchange.md: words 3f80 3f81 0000 8000 become 3f80 3f82 8000 8000.
const Bytes kOld = {0x80, 0x3F, 0x81, 0x3F, 0x00, 0x00, 0x00, 0x80};
const Bytes kNew = {0x80, 0x3F, 0x82, 0x3F, 0x00, 0x80, 0x00, 0x80};
const Bytes kXorBytes = {0, 0, 3, 0, 0, 0x80, 0, 0};
const Bytes kOverwriteBytes = {2, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0x82, 0x80};
constexpr std::string_view kHash = "f140f702380ea3e4b901980456b017d7";

SlimeTensor Of(const Bytes& frame) { return {"w", frame, std::string(kHash)}; }

Code ApplyCode(SlimeEncoding encoding, const Bytes& content, const Bytes& base) {
  Bytes bits = base;
  const Bytes frame = CompressFrame(content, 1).value();
  const auto status = ApplySlime(encoding, Checksum::kXxh3, Of(frame), bits);
  return status ? Code::kInternal : status.error().code();
}

TEST(SlimeDelta, TheDocumentedBytes) {
  for (const auto& [encoding, content] :
       {std::pair(SlimeEncoding::kXor, kXorBytes), std::pair(SlimeEncoding::kOverwrite, kOverwriteBytes)}) {
    const Bytes frame = EncodeSlime(encoding, kOld, kNew).value();
    EXPECT_EQ(DecompressFrame(frame, 100).value(), content);
    Bytes bits = kOld;
    EXPECT_TRUE(ApplySlime(encoding, Checksum::kXxh3, Of(frame), bits));
    EXPECT_EQ(bits, kNew);
  }
}

TEST(SlimeDelta, AnotherBaseIsRefused) {
  Bytes other = kOld;
  other[0] ^= 1;
  EXPECT_EQ(ApplyCode(SlimeEncoding::kXor, kXorBytes, other), Code::kWrongBase);
  EXPECT_EQ(ApplyCode(SlimeEncoding::kOverwrite, kOverwriteBytes, other), Code::kWrongBase);
  // Applied twice, xor gives the old bits back; overwrites change nothing more.
  EXPECT_EQ(ApplyCode(SlimeEncoding::kXor, kXorBytes, kNew), Code::kWrongBase);
  EXPECT_EQ(ApplyCode(SlimeEncoding::kOverwrite, kOverwriteBytes, kNew), Code::kInternal);
}

TEST(SlimeDelta, MalformedDifferencesAreErrors) {
  EXPECT_EQ(ApplyCode(SlimeEncoding::kXor, Bytes(7), kOld), Code::kCorrupt);
  EXPECT_EQ(ApplyCode(SlimeEncoding::kXor, Bytes(9), kOld), Code::kCorrupt);
  const auto overwrite = [](const Bytes& content) {
    return ApplyCode(SlimeEncoding::kOverwrite, content, kOld);
  };
  EXPECT_EQ(overwrite({}), Code::kCorrupt);
  EXPECT_EQ(overwrite({1, 0, 0, 0, 2, 0, 0, 0}), Code::kCorrupt);                          // no value
  EXPECT_EQ(overwrite({1, 0, 0, 0, 8, 0, 0, 0, 1}), Code::kCorrupt);                       // outside
  EXPECT_EQ(overwrite({2, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0, 1, 1}), Code::kCorrupt);        // twice
  EXPECT_EQ(overwrite({2, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 0x80, 0x82}), Code::kCorrupt);  // falling
  EXPECT_EQ(overwrite({0xFF, 0xFF, 0xFF, 0xFF, 2, 0, 0, 0, 1}), Code::kCorrupt);           // count
}

TEST(SlimeDelta, EveryFlipOfAFrameIsAnErrorOrTheRightResult) {
  SeededRng rng(3);
  Bytes base(300);
  for (auto& byte : base) byte = static_cast<uint8_t>(rng.Next());
  Bytes now = base;
  for (size_t i = 0; i < now.size(); i += 17) now[i] ^= static_cast<uint8_t>(rng.Next() | 1);
  for (const auto encoding : {SlimeEncoding::kXor, SlimeEncoding::kOverwrite}) {
    for (const auto checksum : {Checksum::kXxh3, Checksum::kBlake3, Checksum::kAdler32}) {
      const Bytes frame = EncodeSlime(encoding, base, now).value();
      for (size_t at = 0; at < 8 * frame.size(); ++at) {
        Bytes flipped = frame;
        flipped[at / 8] ^= static_cast<uint8_t>(1u << at % 8);
        Bytes bits = base;
        if (ApplySlime(encoding, checksum, {"w", flipped, ChecksumHex(checksum, now)}, bits)) {
          EXPECT_EQ(bits, now) << at;
        }
      }
    }
  }
}

const SlimeIndex kIndex = {.version = 7,
                           .base_version = 6,
                           .encoding = SlimeEncoding::kOverwrite,
                           .checksum = Checksum::kBlake3,
                           .files = {{"w", "model-00000-of-00001.safetensors"}}};

TEST(SlimeDelta, Index) {
  const std::string text = SlimeIndexText(kIndex);
  EXPECT_TRUE(IsSlimeDelta(AsBytes(text)));
  EXPECT_EQ(ParseSlimeIndex(AsBytes(text)).value(), kIndex);
  EXPECT_NE(text.find("\"version\": \"000007\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"base_version\": \"000006\""), std::string::npos);
  EXPECT_FALSE(IsSlimeDelta(AsBytes(R"({"metadata":{"total_size":4},"weight_map":{"w":"a.safetensors"}})")));
  EXPECT_FALSE(IsSlimeDelta(AsBytes("{")));
}

TEST(SlimeDelta, IndexesThatSayWhatWeDontKnowAreErrors) {
  const auto code = [](std::string_view from, std::string_view to) {
    std::string text = SlimeIndexText(kIndex);
    text.replace(text.find(from), from.size(), to);
    const auto index = ParseSlimeIndex(AsBytes(text));
    return index ? Code::kInternal : index.error().code();
  };
  EXPECT_EQ(code("overwrite", "additive"), Code::kUnsupported);
  EXPECT_EQ(code("\"zstd\"", "\"lz4\""), Code::kUnsupported);
  EXPECT_EQ(code("\"blake3\"", "\"sha256\""), Code::kUnsupported);
  EXPECT_EQ(code("\"000007\"", "\"000006\""), Code::kCorrupt);
  EXPECT_EQ(code("\"000007\"", "\"-7\""), Code::kCorrupt);
  EXPECT_EQ(code("\"000007\"", "7"), Code::kCorrupt);
  EXPECT_EQ(code("\"base_version\"", "\"base\""), Code::kCorrupt);
  EXPECT_EQ(code("model-00000-of-00001.safetensors", "../x.safetensors"), Code::kCorrupt);
}

TEST(SlimeDelta, Versions) {
  EXPECT_EQ(SlimeVersionFromFolder("weight_v000007"), 7u);
  EXPECT_EQ(SlimeVersionFromFolder("weight_v1234567"), 1234567u);
  EXPECT_EQ(SlimeVersionFrom("000000"), 0u);
  for (const auto* text : {"", "7a", "-1", "+1", " 1", "99999999999999999999"}) {
    EXPECT_EQ(SlimeVersionFrom(text), std::nullopt) << text;
  }
  EXPECT_EQ(SlimeVersionFromFolder("weights"), std::nullopt);
  EXPECT_EQ(ParseSlimeState(AsBytes(SlimeStateText(7))).value(), 7u);
  EXPECT_EQ(SlimeStateText(7), "{\"version\": \"000007\"}");
  EXPECT_FALSE(ParseSlimeState(AsBytes("{\"version\": 7}")));
  EXPECT_FALSE(ParseSlimeState(AsBytes("{}")));
}

TEST(SlimeDelta, DataFiles) {
  const Bytes frame = EncodeSlime(SlimeEncoding::kXor, kOld, kNew).value();
  const auto built = BuildSlimeFile({Of(frame)}).value();
  Bytes file = built.head;
  file.insert(file.end(), built.data.begin(), built.data.end());
  const auto tensors = ParseSlimeFile(file, Checksum::kXxh3).value();
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].name, "w");
  EXPECT_EQ(tensors[0].checksum, kHash);
  EXPECT_TRUE(std::equal(frame.begin(), frame.end(), tensors[0].frame.begin(), tensors[0].frame.end()));
  // Another checksum's digits, none at all, and another dtype.
  EXPECT_EQ(ParseSlimeFile(file, Checksum::kAdler32).error().code(), Code::kCorrupt);
  const auto plain = [](Dtype dtype) {
    const auto entries = format::LayoutCheckpoint({{.name = "w", .dtype = dtype, .shape = {1}}}).value();
    Bytes out = format::WriteSafetensorsHeader(entries, {{"w", std::string(kHash)}}).value();
    out.resize(out.size() + DtypeBytes(dtype));
    return out;
  };
  EXPECT_TRUE(ParseSlimeFile(plain(Dtype::kU8), Checksum::kXxh3));
  EXPECT_EQ(ParseSlimeFile(plain(Dtype::kBf16), Checksum::kXxh3).error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace deltawire::interchange
