#include "sync/test_catalog.h"

namespace deltawire::sync {
namespace {

constexpr int64_t kHour = 3'600'000;

class GarbageTest : public CatalogTest {
 protected:
  GarbageTest() : writer_(NewRun()) {
    for (int i = 0; i < 3; ++i) Must(TryPublish(*writer_));
    Must(TryWriteAnchor(*writer_, *writer_->newest()));
    kept_ = Names("");
  }

  std::unique_ptr<CatalogWriter> writer_;
  std::vector<std::string> kept_;
};

TEST_F(GarbageTest, UnlistedObjectsGoAfterTheGraceTime) {
  Overwrite("updates/00000001/dead-part-00000.safetensors", "x");
  Overwrite("updates/00000003/dead-part-00001.safetensors", "x");
  Overwrite("updates/00000003/dead-digests.bin", "x");
  Overwrite("anchors/00000001/model.safetensors", "x");
  EXPECT_EQ(Must(writer_->CollectGarbage(kHour)), 0u);
  clock_.SleepMillis(2 * kHour);
  EXPECT_EQ(Must(writer_->CollectGarbage(kHour)), 4u);
  EXPECT_EQ(Names(""), kept_);
  EXPECT_EQ(Must(writer_->CollectGarbage(0)), 0u);
  EXPECT_EQ(Names(""), kept_);
}

TEST_F(GarbageTest, WhatIsBeingWrittenStays) {
  const auto attempt = Must(writer_->BeginVersion(3));
  const ByteSpan piece = AsBytes("part");
  Must(attempt->PutPart({&piece, 1}));
  const auto anchor = Must(writer_->BeginAnchor(Must(Reader().Load(1))));
  Must(anchor->PutFile("config.json", AsBytes("{}")));
  clock_.SleepMillis(2 * kHour);
  EXPECT_EQ(Must(writer_->CollectGarbage(kHour)), 0u);
  EXPECT_EQ(Names("").size(), kept_.size() + 2);
}

TEST_F(GarbageTest, NobodyElsesFilesAreDeleted) {
  for (const char* name :
       {"notes.txt", "updates/README", "updates/00000001/notes.txt", "updates/1/dead-digests.bin",
        "updates/00000001/dead-part-0.safetensors", "updates/00000001/a/dead-digests.bin",
        "anchors/00000002/README.md", "anchors/x/model.safetensors", "inventory-x.json"})
    Overwrite(name, "x");
  const auto all = Names("");
  clock_.SleepMillis(2 * kHour);
  EXPECT_EQ(Must(writer_->CollectGarbage(kHour)), 0u);
  EXPECT_EQ(Names(""), all);
}

TEST_F(GarbageTest, AnUnreadableManifestProtectsItsVersion) {
  Overwrite("manifests/00000001.json", "garbage");
  Overwrite("updates/00000001/dead-part-00000.safetensors", "x");
  clock_.SleepMillis(2 * kHour);
  EXPECT_EQ(Must(writer_->CollectGarbage(kHour)), 0u);
  faulty_->Add({.on = StoreOperation::kGet, .name_contains = "manifests/00000002"});
  EXPECT_EQ(CodeOf(writer_->CollectGarbage(kHour)), Code::kIo);
}

TEST_F(GarbageTest, PartsOfADeletedVersionGo) {
  Must(plain_->Delete("manifests/00000001.json"));
  clock_.SleepMillis(2 * kHour);
  EXPECT_EQ(Must(writer_->CollectGarbage(kHour)), 2u);
  EXPECT_TRUE(Names("updates/00000001/").empty());
}

TEST_F(GarbageTest, WithoutTimesNothingIsOld) {
  const auto store = std::make_shared<MemoryStore>(clock_, MemoryStore::Options{.modification_times = false});
  const auto writer = Must(CatalogWriter::Create(store, {.run = "run", .writer = "w"}, clock_, rng_));
  EXPECT_EQ(CodeOf(writer->CollectGarbage(kHour)), Code::kUnsupported);
}

}  // namespace
}  // namespace deltawire::sync
