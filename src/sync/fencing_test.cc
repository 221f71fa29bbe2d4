// Two publishers on one run: exactly one goes on, the other says so and stops for good.
#include "store/file/file_store.h"
#include "store/test_folder.h"
#include "sync/test_catalog.h"

#include <atomic>
#include <thread>

namespace deltawire::sync {
namespace {

class FencingTest : public CatalogTest {
 protected:
  static void ExpectFencedForGood(CatalogWriter& writer, const char* other) {
    for (int i = 0; i < 2; ++i) {
      const auto begun = writer.BeginVersion(writer.next_number());
      ASSERT_EQ(CodeOf(begun), Code::kFenced);
      EXPECT_NE(begun.error().message().find(other), std::string::npos) << begun.error().message();
      EXPECT_NE(begun.error().message().find("resume"), std::string::npos) << begun.error().message();
      EXPECT_EQ(CodeOf(writer.Settle()), Code::kFenced);
      EXPECT_EQ(CodeOf(writer.PutInventory(TestInventory())), Code::kFenced);
      EXPECT_EQ(CodeOf(writer.CollectGarbage(0)), Code::kFenced);
      VersionRecord record;
      record.manifest.run = "run";
      EXPECT_EQ(CodeOf(writer.BeginAnchor(record)), Code::kFenced);
    }
  }
};

TEST_F(FencingTest, AZombieIsFencedByItsSuccessor) {
  const auto zombie = NewRun("zombie");
  Must(TryPublish(*zombie));
  const auto successor = ResumeRun("successor");
  Must(TryPublish(*successor));
  const auto objects = Names("");
  EXPECT_EQ(CodeOf(TryPublish(*zombie)), Code::kFenced);
  ExpectFencedForGood(*zombie, "writer successor");
  EXPECT_EQ(Names(""), objects) << "the zombie's parts are gone, the successor's are not";
  Must(TryPublish(*successor));
  ExpectAllComplete();
}

TEST_F(FencingTest, AZombieIsFencedAlsoWhereRetentionMadeRoom) {
  const auto zombie = NewRun("zombie");
  Must(TryPublish(*zombie));
  const auto successor = ResumeRun("successor");
  for (int i = 0; i < 4; ++i) Must(TryPublish(*successor));
  for (const uint64_t pruned : {0, 1, 2}) Must(plain_->Delete(format::ManifestName(pruned)));
  EXPECT_EQ(CodeOf(TryPublish(*zombie)), Code::kFenced);
  ExpectFencedForGood(*zombie, "writer successor");
  EXPECT_EQ(Must(Reader().Versions()), (std::vector<uint64_t>{3, 4}));
}

TEST_F(FencingTest, BothStartAtOnceOneWins) {
  const auto a = NewRun("a");
  const auto b = NewRun("b");
  Must(TryPublish(*b));
  EXPECT_EQ(CodeOf(TryPublish(*a)), Code::kFenced);
  ExpectFencedForGood(*a, "writer b");
  EXPECT_EQ(Must(Reader().Load(0)).manifest.writer, "b");
  ExpectAllComplete();
}

TEST_F(FencingTest, TheRivalMayComeBeforeAnyCall) {
  for (uint64_t when = 0;; ++when) {
    plain_ = std::make_shared<MemoryStore>(clock_);
    faulty_ = std::make_shared<FaultStore>(plain_, clock_);
    const auto first = NewRun("first");
    Must(TryPublish(*first));
    const auto rival = Must(CatalogWriter::Resume(plain_, {.run = "run", .writer = "rival"}, clock_, rng_));
    uint64_t calls = 0;
    bool rival_published = false;
    faulty_->BeforeEach([&](const StoreCall&) {
      if (calls++ == when) rival_published = TryPublish(*rival).has_value();
    });
    const auto published = TryPublish(*first);
    const bool came = calls > when;
    faulty_->BeforeEach(nullptr);
    ExpectAllComplete();
    if (!came) break;
    // One of them, and the loser knows.
    EXPECT_NE(published.has_value(), rival_published) << "rival before call " << when;
    const auto& winner = Must(Reader().Load(1)).manifest.writer;
    EXPECT_EQ(winner, rival_published ? "rival" : "first");
    EXPECT_EQ(CodeOf(TryPublish(rival_published ? *first : *rival)), Code::kFenced);
    Must(TryPublish(rival_published ? *rival : *first));
    ExpectAllComplete();
  }
}

TEST_F(FencingTest, OursWasThereBeforeTheOtherBegan) {
  const auto first = NewRun("first");
  Must(TryPublish(*first));
  // The answer to our manifest, and to the read-back, are lost; then another resumes from it and goes on.
  faulty_->Add({.kind = FaultKind::kLoseAnswer, .on = StoreOperation::kPut, .name_contains = "manifests/"});
  faulty_->Add({.on = StoreOperation::kGet, .name_contains = "manifests/"});
  EXPECT_EQ(CodeOf(TryPublish(*first)), Code::kIo);
  ASSERT_TRUE(first->unsettled());
  const auto second = ResumeRun("second");
  EXPECT_EQ(second->next_number(), 2u);
  Must(TryPublish(*second));
  EXPECT_EQ(Must(first->Settle())->number(), 1u) << "it was published";
  EXPECT_EQ(CodeOf(TryPublish(*first)), Code::kFenced);
  ExpectAllComplete();
}

TEST_F(FencingTest, WritersRaceOnFiles) {
  const TestFolder folder;
  const std::shared_ptr<Store> store = Must(FileStore::Open(folder.path() + "/run", true));
  std::atomic<int> published = 0;
  std::atomic<int> fenced = 0;
  std::vector<std::unique_ptr<CatalogWriter>> writers;
  for (int id = 0; id < 3; ++id)
    writers.push_back(Must(CatalogWriter::Create(store, {.run = "run", .writer = fmt::format("w{}", id)})));
  std::vector<std::thread> threads;
  for (auto& writer : writers)
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) {
        const auto record = TryPublish(*writer);
        if (record) ++published;
        if (!record && record.error().code() == Code::kFenced) ++fenced;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(published, 3);
  EXPECT_EQ(fenced, 6);
  plain_ = nullptr;
  Catalog catalog(store);
  const auto winner = Must(catalog.Load(0)).manifest.writer;
  for (const auto number : Must(catalog.Versions())) {
    const auto record = Must(catalog.Load(number));
    EXPECT_EQ(record.manifest.writer, winner);
    EXPECT_EQ(AsText(Must(catalog.ReadPart(record.manifest, 0))), PartText(number));
  }
}

}  // namespace
}  // namespace deltawire::sync
