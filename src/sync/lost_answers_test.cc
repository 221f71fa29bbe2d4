// A store that fails, loses answers or dies at each call of a publish in turn. Whatever happens: the version
// is absent or complete, nothing is published twice, and going on works.
#include "sync/test_catalog.h"

namespace deltawire::sync {
namespace {

class LostAnswersTest : public CatalogTest {
 protected:
  void StartOver() {
    plain_ = std::make_shared<MemoryStore>(clock_);
    faulty_ = std::make_shared<FaultStore>(plain_, clock_);
  }
  // Versions published, each once, by number.
  void ExpectVersions(uint64_t newest) {
    std::vector<uint64_t> expected;
    for (uint64_t number = 0; number <= newest; ++number) expected.push_back(number);
    EXPECT_EQ(Must(Reader().Versions()), expected);
    ExpectAllComplete();
  }
};

// What a publisher does: settle, then publish what is not out yet, until `number` exists.
void PublishUntil(CatalogWriter& writer, uint64_t number) {
  for (int round = 0; round < 10; ++round) {
    if (writer.unsettled() && !writer.Settle()) continue;
    if (writer.next_number() > number) return;
    (void)TryPublish(writer);
  }
  FAIL() << "version " << number << " was not published in ten rounds";
}

TEST_F(LostAnswersTest, AtEachCallOnce) {
  for (const auto kind : {FaultKind::kFail, FaultKind::kLoseAnswer}) {
    for (const auto code : {Code::kIo, Code::kNoSpace}) {
      uint64_t failures = 0;
      for (uint64_t nth = 0;; ++nth) {
        StartOver();
        const auto writer = NewRun();
        Must(TryPublish(*writer));
        faulty_->ClearCalls();
        faulty_->Add({.kind = kind, .nth = nth, .code = code});
        const auto published = TryPublish(*writer);
        const bool hit = faulty_->calls().size() > nth;
        const bool there = Reader().Load(1).has_value();
        if (published) {
          EXPECT_TRUE(there);
        }
        if (!published) ++failures;
        // Not there, and not because it is unclear: then no byte of it is left, but for what the store lost.
        if (!there && !writer->unsettled()) {
          EXPECT_EQ(Names("updates/00000001/").size(), 0u) << nth;
        }
        ExpectAllComplete();
        PublishUntil(*writer, 1);
        ExpectVersions(1);
        Must(TryPublish(*writer));
        ExpectVersions(2);
        if (!hit) break;
      }
      EXPECT_GT(failures, 0u);
    }
  }
}

TEST_F(LostAnswersTest, ALostAnswerToTheManifestAloneIsNoFailure) {
  const auto writer = NewRun();
  Must(TryPublish(*writer));
  for (const auto code : {Code::kIo, Code::kExists, Code::kNoSpace, Code::kCancelled}) {
    faulty_->Add({.kind = FaultKind::kLoseAnswer,
                  .on = StoreOperation::kPut,
                  .name_contains = "manifests/",
                  .code = code});
    Must(TryPublish(*writer));
  }
  ExpectVersions(4);
}

TEST_F(LostAnswersTest, ACommitMayBeRepeated) {
  const auto writer = NewRun();
  Must(TryPublish(*writer));
  const auto attempt = Must(writer->BeginVersion(1));
  format::Manifest manifest;
  manifest.inventory = writer->newest()->manifest.inventory;
  manifest.digest = TestDigest(0);
  manifest.base = BaseOn(*writer->newest());
  const Digest digests[] = {TestDigest(1), Digest()};
  manifest.tensor_digests = Must(attempt->PutTensorDigests(digests));
  Must(attempt->Seal(manifest));
  faulty_->Add({.times = 6, .code = Code::kIo});
  EXPECT_EQ(CodeOf(attempt->Commit()), Code::kIo);
  EXPECT_EQ(CodeOf(attempt->Commit()), Code::kIo);
  Must(attempt->Commit());
  ExpectVersions(1);
}

TEST_F(LostAnswersTest, AnUnclearVersionIsSettledBeforeTheNext) {
  for (const auto kind : {FaultKind::kFail, FaultKind::kLoseAnswer}) {
    StartOver();
    const auto writer = NewRun();
    Must(TryPublish(*writer));
    faulty_->Add({.kind = kind, .on = StoreOperation::kPut, .name_contains = "manifests/"});
    faulty_->Add({.on = StoreOperation::kGet, .name_contains = "manifests/"});
    EXPECT_EQ(CodeOf(TryPublish(*writer)), Code::kIo);
    EXPECT_TRUE(writer->unsettled());
    EXPECT_EQ(CodeOf(writer->BeginVersion(1)), Code::kInvalidArgument);
    EXPECT_EQ(Names("updates/00000001/").size(), 2u) << "its parts must stay";
    EXPECT_EQ(Must(writer->CollectGarbage(0)), 0u) << "also for the collector";
    const auto settled = Must(writer->Settle());
    ASSERT_TRUE(settled);
    EXPECT_EQ(settled->number(), 1u);
    EXPECT_FALSE(writer->unsettled());
    EXPECT_EQ(Must(writer->Settle()), std::nullopt);
    Must(TryPublish(*writer));
    ExpectVersions(2);
  }
}

TEST_F(LostAnswersTest, ADelayedManifestMayStillArrive) {
  const auto writer = NewRun();
  Must(TryPublish(*writer));
  faulty_->Add({.on = StoreOperation::kPut, .name_contains = "manifests/"});
  faulty_->Add({.on = StoreOperation::kGet, .name_contains = "manifests/"});
  const auto attempt = Must(writer->BeginVersion(1));
  format::Manifest manifest;
  manifest.inventory = writer->newest()->manifest.inventory;
  manifest.digest = TestDigest(0);
  manifest.base = BaseOn(*writer->newest());
  const Digest digests[] = {TestDigest(1), Digest()};
  manifest.tensor_digests = Must(attempt->PutTensorDigests(digests));
  const auto record = Must(attempt->Seal(manifest));
  EXPECT_EQ(CodeOf(attempt->Commit()), Code::kIo);
  // The request that was given up reaches the store after all.
  Overwrite("manifests/00000001.json", format::ManifestText(record.manifest));
  Must(attempt->Commit());
  EXPECT_EQ(Must(Reader().Load(1)), record);
}

// SIGKILL at each call: the writer never acts again, its successor resumes.
TEST_F(LostAnswersTest, STO05_APublisherKilledAtEachCall) {
  for (const auto kind : {FaultKind::kFail, FaultKind::kLoseAnswer}) {
    for (uint64_t nth = 0;; ++nth) {
      StartOver();
      auto dead = NewRun("dead");
      Must(TryPublish(*dead));
      faulty_->ClearCalls();
      faulty_->Add({.kind = kind, .nth = nth, .times = 1});
      faulty_->Add({.nth = nth, .times = kForever});
      (void)TryPublish(*dead);
      const bool hit = faulty_->calls().size() > nth;
      dead.reset();
      faulty_->ClearFaults();

      ExpectAllComplete();
      const auto next = ResumeRun("next");
      const bool there = next->next_number() == 2;
      EXPECT_EQ(there, Reader().Load(1).has_value());
      PublishUntil(*next, 2);
      ExpectVersions(2);
      // What the dead one left goes after the grace time, and nothing else does.
      clock_.SleepMillis(3'600'000);
      Must(TryPublish(*next));
      Must(next->CollectGarbage(1'800'000));
      ExpectVersions(3);
      EXPECT_EQ(Names("updates/").size(), 2 * 4u);
      if (!hit) break;
    }
  }
}

TEST_F(LostAnswersTest, APublisherKilledBeforeItsFirstVersion) {
  for (uint64_t nth = 0;; ++nth) {
    StartOver();
    auto dead = NewRun("dead");
    faulty_->ClearCalls();
    faulty_->Add({.nth = nth, .times = kForever});
    (void)TryPublish(*dead);
    const bool hit = faulty_->calls().size() > nth;
    dead.reset();
    faulty_->ClearFaults();
    const bool there = Reader().Load(0).has_value();
    const auto next = there ? ResumeRun("next") : NewRun("next");
    PublishUntil(*next, 1);
    ExpectVersions(1);
    if (!hit) break;
  }
}

TEST_F(LostAnswersTest, ATruncatedPartIsRefusedByReaders) {
  const auto writer = NewRun();
  Must(TryPublish(*writer));
  faulty_->Add({.kind = FaultKind::kTruncate,
                .on = StoreOperation::kAppend,
                .name_contains = "-part-",
                .keep_bytes = 1});
  Must(TryPublish(*writer));
  EXPECT_EQ(CodeOf(Reader().ReadPart(Must(Reader().Load(1)).manifest, 0)), Code::kCorrupt);
}

TEST_F(LostAnswersTest, STO06_AFullStoreIsNamedAndPasses) {
  const auto writer = NewRun();
  Must(TryPublish(*writer));
  for (const auto operation : {StoreOperation::kCreate, StoreOperation::kAppend, StoreOperation::kCommit}) {
    faulty_->Add({.on = operation, .code = Code::kNoSpace});
    EXPECT_EQ(CodeOf(TryPublish(*writer)), Code::kNoSpace);
    EXPECT_FALSE(writer->unsettled());
  }
  faulty_->Add({.on = StoreOperation::kPut, .name_contains = "manifests/", .code = Code::kNoSpace});
  EXPECT_EQ(CodeOf(TryPublish(*writer)), Code::kNoSpace);
  EXPECT_FALSE(writer->unsettled()) << "it is surely absent";
  ExpectVersions(0);
  Must(TryPublish(*writer));
  ExpectVersions(1);
}

TEST_F(LostAnswersTest, AFailingHintIsNoFailure) {
  const auto writer = NewRun();
  faulty_->Add({.name_contains = "LATEST", .times = kForever});
  for (int i = 0; i < 3; ++i) Must(TryPublish(*writer));
  ExpectVersions(2);
}

}  // namespace
}  // namespace deltawire::sync
