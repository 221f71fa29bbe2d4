#include "sync/catalog.h"

#include "sync/test_catalog.h"

namespace deltawire::sync {
namespace {

class CatalogReaderTest : public CatalogTest {
 protected:
  // Versions 0 to last, and an anchor at 0.
  void Publish(uint64_t last) {
    writer_ = NewRun();
    for (uint64_t number = 0; number <= last; ++number) Must(TryPublish(*writer_));
    Must(TryWriteAnchor(*writer_, Must(Reader().Load(0))));
  }
  std::string PartName(uint64_t number) { return Must(Reader().Load(number)).manifest.parts[0].object.name; }

  std::unique_ptr<CatalogWriter> writer_;
};

TEST_F(CatalogReaderTest, ReadsWhatWasPublished) {
  Publish(3);
  auto catalog = Reader();
  EXPECT_EQ(Must(catalog.Run()), "run");
  EXPECT_EQ(Must(catalog.Versions()), (std::vector<uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(Must(catalog.Newest()), 3u);
  const auto record = Must(catalog.Load(2));
  EXPECT_EQ(record.manifest.writer, "w1");
  EXPECT_EQ(record.manifest.digest, TestDigest(2));
  EXPECT_EQ(*Must(catalog.LoadInventory(record.manifest.inventory)), TestInventory());
  EXPECT_EQ(AsText(Must(catalog.ReadPart(record.manifest, 0))), PartText(2));
  EXPECT_EQ(CodeOf(catalog.ReadPart(record.manifest, 1)), Code::kInvalidArgument);
  EXPECT_EQ(Must(catalog.ReadTensorDigests(record.manifest)), (std::vector<Digest>{TestDigest(2), Digest()}));
  const auto path = Must(catalog.Plan({.position = {}, .target = 3, .codings = {}}));
  EXPECT_EQ(path.steps.size(), 4u);
  ExpectAllComplete();
}

TEST_F(CatalogReaderTest, AnEmptyPlaceHasNoVersion) {
  auto catalog = Reader();
  EXPECT_TRUE(Must(catalog.Versions()).empty());
  EXPECT_TRUE(Must(catalog.Anchors()).empty());
  EXPECT_EQ(CodeOf(catalog.Newest()), Code::kNotFound);
  EXPECT_EQ(CodeOf(catalog.Run()), Code::kNotFound);
  EXPECT_EQ(CodeOf(catalog.Load(0)), Code::kNotFound);
}

TEST_F(CatalogReaderTest, LatestNeverChangesTheResult) {
  Publish(4);
  EXPECT_EQ(AsText(Must(plain_->Get("LATEST", 100))), "4\n");
  for (const char* latest : {"", "\n", "2\n", "0", "99\n", "-1", "4 4", "18446744073709551616",
                             "../../etc/passwd", "{\"version\": 9}", "\x80\x02}q"}) {
    Overwrite("LATEST", latest);
    EXPECT_EQ(Must(Reader().Newest()), 4u) << latest;
  }
  Overwrite("LATEST", std::string(100'000, '1'));
  EXPECT_EQ(Must(Reader().Newest()), 4u);
  Must(plain_->Delete("LATEST"));
  EXPECT_EQ(Must(Reader().Newest()), 4u);
}

TEST_F(CatalogReaderTest, LatestShowsWhatAListingDoesNotShowYet) {
  Publish(4);
  // A cached mount: the listing is that of an earlier moment.
  class Lagging final : public Store {
   public:
    explicit Lagging(Store& inner) : inner_(&inner) {}
    std::string Describe() const override { return inner_->Describe(); }
    StoreCapabilities capabilities() const override { return inner_->capabilities(); }
    Result<Bytes> Get(std::string_view name, uint64_t max) override { return inner_->Get(name, max); }
    Result<Bytes> GetRange(std::string_view n, uint64_t o, uint64_t l) override {
      return inner_->GetRange(n, o, l);
    }
    Result<ObjectInfo> Stat(std::string_view name) override { return inner_->Stat(name); }
    Status Put(std::string_view n, ByteSpan b, Condition c) override { return inner_->Put(n, b, c); }
    Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override {
      return inner_->Create(name);
    }
    Result<std::vector<ObjectInfo>> List(std::string_view prefix) override {
      DELTAWIRE_ASSIGN(auto infos, inner_->List(prefix));
      if (infos.size() > 2) infos.resize(2);
      return infos;
    }
    Status Delete(std::string_view name) override { return inner_->Delete(name); }
    Result<uint64_t> CleanTemporary(int64_t age) override { return inner_->CleanTemporary(age); }

   private:
    Store* inner_;
  };
  Catalog catalog(std::make_shared<Lagging>(*plain_));
  EXPECT_EQ(Must(catalog.Newest()), 4u);
}

TEST_F(CatalogReaderTest, MEM07_AReceiverFindsTheNewestInAFewLookupsAtAnyAge) {
  writer_ = NewRun();
  const auto lookups = [&](std::optional<uint64_t> held) {
    faulty_->ClearCalls();
    EXPECT_EQ(Must(Catalog(faulty_).NewestFrom(held)), writer_->newest()->number());
    const auto calls = faulty_->calls();
    for (const auto& call : calls) EXPECT_NE(call.operation, StoreOperation::kList) << call.name;
    return calls.size();
  };
  size_t young = 0;
  for (int version = 0; version <= 300; ++version) {
    const auto number = Must(TryPublish(*writer_)).number();
    if (version == 2) young = lookups(number - 1);
    if (version % 50 != 0) continue;
    for (const std::optional<uint64_t> held : {std::optional<uint64_t>(), std::optional(number)})
      EXPECT_LE(lookups(held), 3u) << "LATEST, its manifest, and that there is none after it";
  }
  EXPECT_EQ(lookups(299), young);
  // A hint that could not be written for a while costs a lookup for each version since the receiver's.
  Overwrite("LATEST", "7\n");
  EXPECT_EQ(lookups(297), young + 3);
}

TEST_F(CatalogReaderTest, TheNewestIsFoundFromAnyHintAndAnyVersionHeld) {
  Publish(40);
  for (const char* latest : {"", "\n", "40\n", "39\n", "2", "0", "41", "99\n", "-1", "4 4",
                             "18446744073709551615", "18446744073709551616", "../../etc/passwd"}) {
    Overwrite("LATEST", latest);
    for (const std::optional<uint64_t> held :
         {std::optional<uint64_t>(), std::optional<uint64_t>(0), std::optional<uint64_t>(39),
          std::optional<uint64_t>(40), std::optional<uint64_t>(41), std::optional(UINT64_MAX)})
      EXPECT_EQ(Must(Reader().NewestFrom(held)), 40u) << latest << ", held " << held.value_or(1000);
  }
  // Pruned from the bottom, and a hole in the middle: with the hint that the writer left, neither matters.
  Overwrite("LATEST", "40\n");
  for (const uint64_t gone : {0, 1, 2, 20, 39}) Must(plain_->Delete(format::ManifestName(gone)));
  EXPECT_EQ(Must(Reader().NewestFrom(std::nullopt)), 40u);
  EXPECT_EQ(Must(Reader().NewestFrom(19)), 40u);
  // Both lie: the version held is gone with a restored store, and so is the one of the hint.
  Must(plain_->Delete(format::ManifestName(40)));
  EXPECT_EQ(Must(Reader().NewestFrom(40)), 38u);
  Must(plain_->Delete("LATEST"));
  EXPECT_EQ(Must(Reader().NewestFrom(40)), 38u);
  EXPECT_EQ(Must(Reader().NewestFrom(19)), 38u) << "over the hole at 20";
  EXPECT_EQ(CodeOf(Catalog(std::make_shared<MemoryStore>(clock_)).NewestFrom(3)), Code::kNotFound);
}

TEST_F(CatalogReaderTest, ALookupThatFailedIsNoAnswer) {
  Publish(4);
  for (uint64_t nth = 0; nth < 2; ++nth) {
    faulty_->Add({.on = StoreOperation::kStat, .nth = nth, .times = 1});
    EXPECT_EQ(CodeOf(Catalog(faulty_).NewestFrom(2)), Code::kIo) << nth;
    faulty_->ClearFaults();
  }
  // A hint that can't be read is none.
  faulty_->Add({.on = StoreOperation::kGet, .name_contains = "LATEST"});
  EXPECT_EQ(Must(Catalog(faulty_).NewestFrom(2)), 4u);
}

TEST_F(CatalogReaderTest, StrangersAmongTheManifestsAreNoVersions) {
  Publish(1);
  for (const char* name :
       {"manifests/7.json", "manifests/00000009.json.bak", "manifests/000000009.json", "manifests/notes.txt",
        "manifests/00000009/x.json", "anchors/00000001/model.safetensors", "anchors/1/manifest.json"})
    Overwrite(name, "{}");
  EXPECT_EQ(Must(Reader().Versions()), (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(Must(Reader().Anchors()), (std::vector<uint64_t>{0}));
}

TEST_F(CatalogReaderTest, NumbersAreSortedAsNumbers) {
  for (const char* name : {"manifests/99999999.json", "manifests/100000000.json", "manifests/00000003.json"})
    Overwrite(name, "{}");
  EXPECT_EQ(Must(Reader().Versions()), (std::vector<uint64_t>{3, 99'999'999, 100'000'000}));
}

TEST_F(CatalogReaderTest, STO04_EachMissingObjectIsAnErrorThatNamesIt) {
  Publish(2);
  const auto record = Must(Reader().Load(2));
  for (const auto& name : {record.manifest.parts[0].object.name, record.manifest.tensor_digests->name,
                           format::InventoryName(record.manifest.inventory)}) {
    const auto saved = Must(plain_->Get(name, 1 << 20));
    Must(plain_->Delete(name));
    auto catalog = Reader();
    const auto part = catalog.ReadPart(record.manifest, 0);
    const auto digests = catalog.ReadTensorDigests(record.manifest);
    const auto& error = part ? digests.error() : part.error();
    EXPECT_FALSE(part && digests);
    EXPECT_EQ(error.code(), Code::kNotFound);
    EXPECT_NE(error.message().find(name), std::string::npos) << error.message();
    Overwrite(name, AsText(saved));
  }
  Must(plain_->Delete("manifests/00000002.json"));
  const auto gone = Reader().Load(2);
  EXPECT_EQ(CodeOf(gone), Code::kNotFound);
  EXPECT_NE(gone.error().message().find("version 2"), std::string::npos);
  EXPECT_EQ(Must(Reader().Newest()), 1u);
}

TEST_F(CatalogReaderTest, STO01_PartsAreVerifiedWhole) {
  Publish(1);
  const auto record = Must(Reader().Load(1));
  const auto name = PartName(1);
  const auto good = std::string(AsText(Must(plain_->Get(name, 1000))));
  for (size_t keep = 0; keep < good.size(); ++keep) {
    Overwrite(name, good.substr(0, keep));
    const auto part = Reader().ReadPart(record.manifest, 0);
    ASSERT_EQ(CodeOf(part), Code::kCorrupt);
    const auto& message = part.error().message();
    EXPECT_NE(message.find(fmt::format("{} bytes; expected {}", keep, good.size())), std::string::npos)
        << message;
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    auto bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    Overwrite(name, bad);
    const auto part = Reader().ReadPart(record.manifest, 0);
    ASSERT_EQ(CodeOf(part), Code::kCorrupt);
    EXPECT_NE(part.error().message().find(record.manifest.parts[0].object.sha256), std::string::npos);
  }
  Overwrite(name, good + "x");
  EXPECT_EQ(CodeOf(Reader().ReadPart(record.manifest, 0)), Code::kCorrupt);
  Overwrite(name, good);
  EXPECT_TRUE(Reader().ReadPart(record.manifest, 0));
}

TEST_F(CatalogReaderTest, ASizeClaimedByAManifestAllocatesNothing) {
  Publish(1);
  auto record = Must(Reader().Load(1));
  record.manifest.parts[0].object.bytes = UINT64_MAX;
  EXPECT_EQ(CodeOf(Reader().ReadPart(record.manifest, 0)), Code::kCorrupt);
}

TEST_F(CatalogReaderTest, EveryDamageToAManifestIsNoticed) {
  Publish(1);
  const auto good = std::string(AsText(Must(plain_->Get("manifests/00000001.json", 1 << 20))));
  for (size_t at = 0; at < good.size(); at += 3) {
    auto bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x04);
    Overwrite("manifests/00000001.json", bad);
    EXPECT_FALSE(Reader().Load(1)) << at;
    Overwrite("manifests/00000001.json", good.substr(0, at));
    EXPECT_FALSE(Reader().Load(1)) << at;
  }
  // Under another number.
  Overwrite("manifests/00000001.json", AsText(Must(plain_->Get("manifests/00000000.json", 1 << 20))));
  EXPECT_EQ(CodeOf(Reader().Load(1)), Code::kCorrupt);
}

TEST_F(CatalogReaderTest, ADamagedInventoryIsRefused) {
  Publish(0);
  const auto record = Must(Reader().Load(0));
  Overwrite(format::InventoryName(record.manifest.inventory), format::InventoryText(TestInventory("other")));
  EXPECT_EQ(CodeOf(Reader().LoadInventory(record.manifest.inventory)), Code::kCorrupt);
}

TEST_F(CatalogReaderTest, VER17_AManifestOfAnotherRunIsRefused) {
  Publish(2);
  const auto other_store = std::make_shared<MemoryStore>(clock_);
  const auto other = Must(CatalogWriter::Create(other_store, {.run = "other", .writer = "x"}, clock_, rng_));
  for (int i = 0; i < 4; ++i) Must(TryPublish(*other));
  const auto foreign = Must(other_store->Get("manifests/00000003.json", 1 << 20));
  Overwrite("manifests/00000003.json", AsText(foreign));
  auto catalog = Reader();
  const auto loaded = catalog.Load(3);
  EXPECT_EQ(CodeOf(loaded), Code::kWrongRun);
  EXPECT_NE(loaded.error().message().find("\"other\""), std::string::npos) << loaded.error().message();
  EXPECT_NE(loaded.error().message().find("\"run\""), std::string::npos) << loaded.error().message();
  EXPECT_TRUE(catalog.Load(2));
  EXPECT_EQ(CodeOf(catalog.Plan({.position = {}, .target = 3, .codings = {}})), Code::kWrongRun);
  // A reader that knows its run refuses the whole place.
  Catalog expecting(plain_, "third");
  EXPECT_EQ(CodeOf(expecting.Load(0)), Code::kWrongRun);
}

TEST_F(CatalogReaderTest, ADamagedOldVersionDoesNotHideTheRest) {
  Publish(3);
  Overwrite("manifests/00000000.json", "garbage");
  auto catalog = Reader();
  EXPECT_EQ(Must(catalog.Newest()), 3u);
  EXPECT_TRUE(catalog.Load(3));
  EXPECT_EQ(
      Must(catalog.Plan({.position = {.version = 2, .digest = {}}, .target = 3, .codings = {}})).steps.size(),
      1u);
}

TEST_F(CatalogReaderTest, VER05_AChainWithAHoleIsRefusedBeforeAnythingIsRead) {
  Publish(6);
  for (uint64_t hole = 1; hole <= 5; ++hole) {
    const auto name = format::ManifestName(hole);
    const auto saved = Must(plain_->Get(name, 1 << 20));
    Must(plain_->Delete(name));
    auto catalog = Reader();
    const auto path = catalog.Plan({.position = {.version = 0, .digest = {}}, .target = 6, .codings = {}});
    EXPECT_EQ(CodeOf(path), Code::kNotFound);
    EXPECT_NE(path.error().message().find(fmt::format("version {}, the base of version {}", hole, hole + 1)),
              std::string::npos)
        << path.error().message();
    EXPECT_EQ(Must(catalog.Versions()).size(), 6u);
    EXPECT_EQ(Must(catalog.Newest()), 6u);
    Overwrite(name, AsText(saved));
  }
}

TEST_F(CatalogReaderTest, AnchorsAreStreamedAndVerified) {
  Publish(0);
  auto catalog = Reader();
  EXPECT_EQ(Must(catalog.Anchors()), std::vector<uint64_t>{0});
  const auto anchor = Must(catalog.LoadAnchor(0));
  EXPECT_EQ(anchor.manifest, Must(catalog.Load(0)).sha256);
  EXPECT_EQ(Must(catalog.ReadTensorDigests(anchor)).front(), TestDigest(0));
  const auto read = [&](size_t index) -> Result<std::string> {
    std::string text;
    DELTAWIRE_TRY(Reader().ReadAnchorFile(anchor, index, [&](ByteSpan piece) -> Status {
      text += AsText(piece);
      return {};
    }));
    return text;
  };
  EXPECT_EQ(Must(read(0)), "weights of 0");
  EXPECT_EQ(Must(read(1)), "{}");
  EXPECT_EQ(CodeOf(read(2)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(catalog.ReadAnchorFile(anchor, 0,
                                          [](ByteSpan) { return Status(Fail(Code::kNoSpace, "full")); })),
            Code::kNoSpace);
  const std::string name = "anchors/00000000/model.safetensors";
  Overwrite(name, "weights of 1");
  EXPECT_EQ(CodeOf(read(0)), Code::kCorrupt);
  Overwrite(name, "weights of");
  EXPECT_EQ(CodeOf(read(0)), Code::kCorrupt);
  Must(plain_->Delete(name));
  EXPECT_EQ(CodeOf(read(0)), Code::kNotFound);
  EXPECT_EQ(CodeOf(catalog.LoadAnchor(1)), Code::kNotFound);
}

TEST_F(CatalogReaderTest, LargeAnchorFilesComeInPieces) {
  writer_ = NewRun();
  const auto record = Must(TryPublish(*writer_));
  Bytes large((8u << 20) * 2 + 17);
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  const auto attempt = Must(writer_->BeginAnchor(record));
  Must(attempt->PutFile("model.safetensors", large));
  Must(attempt->Commit());
  Bytes read;
  size_t pieces = 0;
  auto catalog = Reader();
  Must(catalog.ReadAnchorFile(Must(catalog.LoadAnchor(0)), 0, [&](ByteSpan piece) -> Status {
    ++pieces;
    read.insert(read.end(), piece.begin(), piece.end());
    return {};
  }));
  EXPECT_EQ(pieces, 3u);
  EXPECT_EQ(read, large);
}

}  // namespace
}  // namespace deltawire::sync
