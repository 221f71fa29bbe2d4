#include "format/open_patch.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "format/safetensors.h"
#include "format/test_data.h"

namespace deltawire::format {
namespace {

using Metadata = std::map<std::string, std::string>;

const Metadata kTrl = {{"format", "sparse_weight_patch"},
                       {"version", "1"},
                       {"sparse", "True"},
                       {"encoding", "gap_delta"},
                       {"model_version", "7"}};

// A safetensors file of one-dimensional tensors, in the order of the reference writer.
Bytes FileOf(const std::map<std::string, std::pair<Dtype, Bytes>>& tensors, const Metadata& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.first, {tensor.second.size() / DtypeBytes(tensor.first)}});
  }
  entries = LayoutCheckpoint(std::move(entries)).value();
  Bytes file = WriteSafetensorsHeader(entries, metadata).value();
  for (const auto& entry : entries) {
    const Bytes& data = tensors.at(entry.name).second;
    file.insert(file.end(), data.begin(), data.end());
  }
  return file;
}

Metadata With(const std::string& key, const std::string& value) {
  Metadata metadata = kTrl;
  metadata[key] = value;
  return metadata;
}

// Positions 3, 4, 1000 with values 1.0, -1.0, 0x3c01: the vector that TRL's own writer gave.
const std::map<std::string, std::pair<Dtype, Bytes>> kVector = {
    {"w.val", {Dtype::kBf16, {0x80, 0x3F, 0x80, 0xBF, 0x01, 0x3C}}},
    {"w.idx", {Dtype::kU16, {3, 0, 0, 0, 0xE3, 0x03}}}};

Code CodeOf(const Bytes& file) {
  const auto patch = ParseOpenPatch(file);
  return patch ? Code::kInternal : patch.error().code();
}

TEST(OpenPatch, ReadsTheVectorOfTrl) {
  const Bytes file = FileOf(kVector, kTrl);
  EXPECT_TRUE(IsOpenPatch(file));
  const auto patch = ParseOpenPatch(file).value();
  EXPECT_FALSE(patch.header);
  ASSERT_EQ(patch.tensors.size(), 1u);
  EXPECT_EQ(patch.tensors[0].name, "w");
  EXPECT_EQ(patch.tensors[0].dtype, Dtype::kBf16);
  EXPECT_EQ(PositionsOf(patch.tensors[0], patch.encoding, 2048).value(), (std::vector<uint64_t>{3, 4, 1000}));
}

TEST(OpenPatch, ReadsRawPositions) {
  auto tensors = kVector;
  tensors["w.idx"] = {Dtype::kI32, {3, 0, 0, 0, 4, 0, 0, 0, 0xE8, 3, 0, 0}};
  const Bytes file = FileOf(tensors, With("encoding", "raw"));
  const auto patch = ParseOpenPatch(file).value();
  EXPECT_EQ(PositionsOf(patch.tensors[0], patch.encoding, 1001).value(), (std::vector<uint64_t>{3, 4, 1000}));
}

TEST(OpenPatch, PositionsOutsideTheTensorAreErrors) {
  const Bytes file = FileOf(kVector, kTrl);
  const auto patch = ParseOpenPatch(file).value();
  EXPECT_TRUE(PositionsOf(patch.tensors[0], patch.encoding, 1001));
  const auto outside = PositionsOf(patch.tensors[0], patch.encoding, 1000);
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().code(), Code::kCorrupt);
  EXPECT_NE(outside.error().message().find("\"w\""), std::string::npos);
  EXPECT_FALSE(PositionsOf(patch.tensors[0], patch.encoding, 0));
}

TEST(OpenPatch, RawPositionsThatRepeatFallBackOrAreNegativeAreErrors) {
  for (const Bytes& index : {Bytes{3, 0, 0, 0, 3, 0, 0, 0}, Bytes{4, 0, 0, 0, 3, 0, 0, 0},
                             Bytes{3, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF}}) {
    const Bytes file = FileOf({{"w.val", {Dtype::kBf16, Bytes(4)}}, {"w.idx", {Dtype::kI32, index}}},
                              With("encoding", "raw"));
    const auto patch = ParseOpenPatch(file).value();
    EXPECT_FALSE(PositionsOf(patch.tensors[0], patch.encoding, uint64_t{1} << 40));
  }
}

TEST(OpenPatch, GapsThatOverflowAreErrors) {
  const Bytes file =
      FileOf({{"w.val", {Dtype::kBf16, Bytes(4)}}, {"w.idx", {Dtype::kU64, Bytes(16, 0xFF)}}}, kTrl);
  const auto patch = ParseOpenPatch(file).value();
  EXPECT_FALSE(PositionsOf(patch.tensors[0], patch.encoding, ~uint64_t{0}));
}

TEST(OpenPatch, MalformedFilesAreErrors) {
  EXPECT_EQ(CodeOf(FileOf(kVector, With("format", "anchor_checkpoint"))), Code::kCorrupt);
  EXPECT_EQ(CodeOf(FileOf(kVector, With("version", "2"))), Code::kUnsupported);
  EXPECT_EQ(CodeOf(FileOf(kVector, With("sparse", "False"))), Code::kUnsupported);
  EXPECT_EQ(CodeOf(FileOf(kVector, With("encoding", "nvcomp_cascaded"))), Code::kUnsupported);
  EXPECT_EQ(CodeOf(FileOf(kVector, With("encoding", "raw"))), Code::kCorrupt);
  EXPECT_EQ(CodeOf(FileOf(kVector, With("deltawire.format", "other"))), Code::kUnsupported);
  Metadata old = kTrl;
  old.erase("encoding");
  EXPECT_EQ(CodeOf(FileOf(kVector, old)), Code::kUnsupported);
  auto tensors = kVector;
  tensors["v.val"] = tensors["w.val"];
  EXPECT_EQ(CodeOf(FileOf(tensors, kTrl)), Code::kCorrupt);
  tensors = kVector;
  tensors["x.idx"] = tensors["w.idx"];
  EXPECT_EQ(CodeOf(FileOf(tensors, kTrl)), Code::kCorrupt);
  tensors = kVector;
  tensors["w.val"].second.resize(4);
  EXPECT_EQ(CodeOf(FileOf(tensors, kTrl)), Code::kCorrupt);
  tensors = kVector;
  tensors["deltawire.digests"] = {Dtype::kU8, Bytes(3)};
  EXPECT_EQ(CodeOf(FileOf(tensors, kTrl)), Code::kCorrupt);
  tensors = kVector;
  tensors["w.idx"] = {Dtype::kF16, Bytes(6)};
  EXPECT_EQ(CodeOf(FileOf(tensors, kTrl)), Code::kCorrupt);
}

TEST(OpenPatch, GapsTakeTheNarrowestWidthThatHoldsThem) {
  const auto check = [](const std::vector<uint64_t>& positions, Dtype dtype) {
    OpenTensor tensor;
    tensor.count = positions.size();
    Bytes index;
    tensor.index_dtype = AppendGaps(positions, index);
    tensor.index = index;
    EXPECT_EQ(tensor.index_dtype, dtype);
    EXPECT_EQ(PositionsOf(tensor, IndexEncoding::kGap, positions.empty() ? 0 : positions.back() + 1).value(),
              positions);
  };
  check({}, Dtype::kU16);
  check({0}, Dtype::kU16);
  check({65535, 131071}, Dtype::kU16);
  check({65536}, Dtype::kU32);
  check({5, 5 + 65537}, Dtype::kU32);
  // A tensor above 2^31 and 2^32 elements, where TRL's own 32-bit positions end.
  check({1, (uint64_t{1} << 31) + 7, uint64_t{1} << 32}, Dtype::kU32);
  check({(uint64_t{1} << 32) - 1}, Dtype::kU32);
  check({uint64_t{1} << 32}, Dtype::kU64);
  check({1, (uint64_t{1} << 40) - 1}, Dtype::kU64);
}

Bytes Example() {
  std::vector<OpenColumns> columns(2);
  columns[0] = {.name = "mlp.weight", .count = 2, .index = {1, 0, 3, 0}, .values = {0, 0, 0x80, 0x3F}};
  columns[1] = {.name = "norm.weight", .count = 1, .index = {0, 0}, .dtype = Dtype::kF32, .values = Bytes(4)};
  const auto built =
      BuildOpen(ExampleHeader(), columns, {{{3, 4}}, {{5, 6}}}, ExampleInventory(), EmbedInventory::kYes)
          .value();
  Bytes file = built.frame.head;
  file.insert(file.end(), built.data.begin(), built.data.end());
  file.insert(file.end(), built.frame.tail.begin(), built.frame.tail.end());
  EXPECT_EQ(built.frame.table.offset + built.frame.table.bytes, file.size());
  return file;
}

TEST(OpenPatch, AnOpenUpdateSaysWhichVersionItMakes) {
  const Bytes file = Example();
  const auto patch = ParseOpenPatch(file).value();
  EXPECT_EQ(patch.header, ExampleHeader());
  EXPECT_EQ(ReadOpenInventory(patch).value(), ExampleInventory());
  EXPECT_EQ(patch.digests, (std::vector<Digest>{{{3, 4}}, {{5, 6}}}));
  ASSERT_EQ(patch.tensors.size(), 2u);
  EXPECT_EQ(PositionsOf(patch.tensors[0], patch.encoding, 12).value(), (std::vector<uint64_t>{1, 5}));
}

TEST(OpenPatch, EveryTruncationAndEveryFlipOfAnOpenUpdateIsAnErrorOrChangesNothing) {
  const Bytes file = Example();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(ParseOpenPatch(ByteSpan(file).first(size))) << size;
  }
  const auto right = ParseOpenPatch(file).value();
  int accepted = 0;
  for (size_t at = 0; at < file.size(); ++at) {
    for (const uint8_t mask : {0x01, 0x20, 0x80}) {
      Bytes changed = file;
      changed[at] ^= mask;
      const auto patch = ParseOpenPatch(changed);
      if (!patch || !patch->header) continue;  // (a key of ours renamed: then it is somebody else's patch)
      ++accepted;
      EXPECT_EQ(patch->header, right.header) << at;
      ASSERT_EQ(patch->tensors.size(), right.tensors.size()) << at;
    }
  }
  EXPECT_LT(accepted, 10);  // white space of the header only
}

}  // namespace
}  // namespace deltawire::format
