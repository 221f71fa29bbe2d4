#include "sync/test_catalog.h"

namespace deltawire::sync {
namespace {

class AnchorAttemptTest : public CatalogTest {
 protected:
  static constexpr auto kManifest = "anchors/00000000/manifest.json";
};

TEST_F(AnchorAttemptTest, TheManifestComesLastAndListsAll) {
  const auto writer = NewRun();
  const auto record = Must(TryPublish(*writer));
  faulty_->ClearCalls();
  Must(TryWriteAnchor(*writer, record));
  EXPECT_EQ(faulty_->calls().back(), (StoreCall{StoreOperation::kPut, kManifest}));
  EXPECT_EQ(Names("anchors/"),
            (std::vector<std::string>{"anchors/00000000/config.json", "anchors/00000000/digests.bin",
                                      kManifest, "anchors/00000000/model.safetensors"}));
  const auto anchor = Must(Reader().LoadAnchor(0));
  ASSERT_EQ(anchor.files.size(), 2u);
  EXPECT_EQ(anchor.files[0].name, "model.safetensors");
  EXPECT_EQ(anchor.files[0].bytes, 12u);
  EXPECT_EQ(anchor.files[0].sha256, ToHex(Sha256(AsBytes("weights of 0"))));
}

TEST_F(AnchorAttemptTest, AnAbandonedAnchorLeavesNothing) {
  const auto writer = NewRun();
  const auto record = Must(TryPublish(*writer));
  {
    const auto anchor = Must(writer->BeginAnchor(record));
    EXPECT_EQ(CodeOf(writer->BeginAnchor(record)), Code::kInvalidArgument) << "one at a time";
    Must(anchor->PutFile("config.json", AsBytes("{}")));
    const auto file = Must(anchor->CreateFile("model.safetensors"));
    Must(file->Append(AsBytes("half")));
  }
  EXPECT_TRUE(Names("anchors/").empty());
  Must(TryWriteAnchor(*writer, record));
}

TEST_F(AnchorAttemptTest, AFileWithoutCommitIsNotListed) {
  const auto writer = NewRun();
  const auto anchor = Must(writer->BeginAnchor(Must(TryPublish(*writer))));
  {
    const auto file = Must(anchor->CreateFile("model.safetensors"));
    Must(file->Append(AsBytes("half")));
  }
  Must(anchor->PutFile("model.safetensors", AsBytes("whole")));
  Must(anchor->Commit());
  EXPECT_EQ(Must(Reader().LoadAnchor(0)).files.size(), 1u);
  EXPECT_EQ(Must(Reader().LoadAnchor(0)).files[0].bytes, 5u);
}

TEST_F(AnchorAttemptTest, SEC03_NamesStayInTheFolder) {
  const auto writer = NewRun();
  const auto anchor = Must(writer->BeginAnchor(Must(TryPublish(*writer))));
  Must(anchor->PutFile("config.json", AsBytes("{}")));
  for (const char* name :
       {"", "..", "../x", "a/b", "/x", ".hidden", "manifest.json", "digests.bin", "config.json"})
    EXPECT_EQ(CodeOf(anchor->PutFile(name, AsBytes("x"))), Code::kInvalidArgument) << name;
}

TEST_F(AnchorAttemptTest, AVersionHasOneAnchor) {
  const auto writer = NewRun();
  const auto record = Must(TryPublish(*writer));
  Must(TryWriteAnchor(*writer, record));
  EXPECT_EQ(CodeOf(writer->BeginAnchor(record)), Code::kExists);
  auto foreign = record;
  foreign.manifest.run = "other";
  EXPECT_EQ(CodeOf(writer->BeginAnchor(foreign)), Code::kWrongRun);
  auto replaced = record;
  replaced.sha256 = std::string(64, '0');
  EXPECT_EQ(CodeOf(writer->BeginAnchor(replaced)), Code::kInvalidArgument);
  EXPECT_TRUE(Reader().LoadAnchor(0));
}

// Version 0 must not exist before its anchor does: the anchor of the sealed version is written first.
TEST_F(AnchorAttemptTest, VersionZeroAppearsTogetherWithItsAnchor) {
  const auto writer = NewRun();
  const auto inventory = Must(writer->PutInventory(TestInventory()));
  const auto publish = [&](bool dies) {
    const auto attempt = Must(writer->BeginVersion(0));
    format::Manifest manifest;
    manifest.inventory = inventory;
    manifest.digest = TestDigest(0);
    const auto record = Must(attempt->Seal(manifest));
    Must(TryWriteAnchor(*writer, record));
    EXPECT_EQ(CodeOf(Reader().Newest()), Code::kNotFound);
    if (!dies) Must(attempt->Commit());
    return record;
  };
  const auto lost = publish(true);
  // The anchor of an attempt that was never published is in nobody's way.
  clock_.SleepMillis(5);
  const auto record = publish(false);
  EXPECT_NE(lost.sha256, record.sha256);
  EXPECT_EQ(Must(Reader().LoadAnchor(0)).manifest, record.sha256);
  const auto path = Must(Reader().Plan({.position = {}, .target = 0, .codings = {}}));
  ASSERT_EQ(path.steps.size(), 1u);
  EXPECT_EQ(path.steps[0].kind, Step::Kind::kAnchor);
}

TEST_F(AnchorAttemptTest, LeftoversAndDamagedAnchorsAreReplaced) {
  const auto writer = NewRun();
  const auto record = Must(TryPublish(*writer));
  Overwrite("anchors/00000000/model-00001-of-00009.safetensors", "old shard");
  Overwrite(kManifest, "garbage");
  Must(TryWriteAnchor(*writer, record));
  EXPECT_EQ(Names("anchors/").size(), 4u);
  EXPECT_TRUE(Reader().LoadAnchor(0));
}

TEST_F(AnchorAttemptTest, AtEachCallTheAnchorIsAbsentOrComplete) {
  for (const auto kind : {FaultKind::kFail, FaultKind::kLoseAnswer}) {
    for (uint64_t nth = 0;; ++nth) {
      plain_ = std::make_shared<MemoryStore>(clock_);
      faulty_ = std::make_shared<FaultStore>(plain_, clock_);
      const auto writer = NewRun();
      const auto record = Must(TryPublish(*writer));
      faulty_->ClearCalls();
      faulty_->Add({.kind = kind, .nth = nth});
      const auto written = TryWriteAnchor(*writer, record);
      const bool hit = faulty_->calls().size() > nth;
      for (int round = 0; round < 2; ++round) {
        auto catalog = Reader();
        const auto anchor = catalog.LoadAnchor(0);
        if (round == 0 && written) {
          EXPECT_TRUE(anchor);
        }
        if (anchor) {
          for (size_t i = 0; i < anchor->files.size(); ++i)
            EXPECT_TRUE(catalog.ReadAnchorFile(*anchor, i, [](ByteSpan) { return Status(); }));
          break;
        }
        ASSERT_EQ(round, 0);
        Must(TryWriteAnchor(*writer, record));
      }
      if (!hit) break;
    }
  }
}

}  // namespace
}  // namespace deltawire::sync
