#include "sync/catalog_writer.h"

#include "sync/test_catalog.h"

namespace deltawire::sync {
namespace {

class CatalogWriterTest : public CatalogTest {};

TEST_F(CatalogWriterTest, NumbersStartAtZeroAndRise) {
  const auto writer = NewRun();
  EXPECT_EQ(writer->next_number(), 0u);
  EXPECT_FALSE(writer->newest());
  for (uint64_t number = 0; number < 3; ++number) EXPECT_EQ(Must(TryPublish(*writer)).number(), number);
  EXPECT_EQ(writer->next_number(), 3u);
  EXPECT_EQ(CodeOf(writer->BeginVersion(2)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(writer->BeginVersion(4)), Code::kInvalidArgument);
}

TEST_F(CatalogWriterTest, VER12_ARunIsNotStartedOverAnother) {
  {
    const auto writer = NewRun("first");
    for (int i = 0; i < 3; ++i) Must(TryPublish(*writer));
  }
  const auto again = CatalogWriter::Create(faulty_, {.run = "new", .writer = "second"}, clock_, rng_);
  ASSERT_EQ(CodeOf(again), Code::kExists);
  const auto& message = again.error().message();
  for (const char* part : {"up to 2", "\"run\"", "writer first", "resume"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  // Unreadable or without versions: it is still somebody's.
  Overwrite("manifests/00000002.json", "garbage");
  EXPECT_EQ(CodeOf(CatalogWriter::Create(faulty_, {.run = "new", .writer = "second"}, clock_, rng_)),
            Code::kExists);
  for (const auto& name : Names("manifests/")) Must(plain_->Delete(name));
  Overwrite("anchors/00000001/manifest.json", "{}");
  EXPECT_EQ(CodeOf(CatalogWriter::Create(faulty_, {.run = "new", .writer = "second"}, clock_, rng_)),
            Code::kExists);
}

TEST_F(CatalogWriterTest, STO05_LeftoversOfAPublisherThatDiedAreNoRun) {
  Overwrite("updates/00000000/aaaa-part-00000.safetensors", "half");
  Overwrite("anchors/00000000/model.safetensors", "half");
  const auto writer = NewRun();
  Must(TryPublish(*writer));
  ExpectAllComplete();
}

TEST_F(CatalogWriterTest, VER10_ResumeGoesOnAfterTheNewest) {
  {
    const auto writer = NewRun();
    for (int i = 0; i < 58; ++i) Must(TryPublish(*writer));
  }
  Overwrite("LATEST", "3\n");
  const auto writer = ResumeRun("w2");
  EXPECT_EQ(writer->next_number(), 58u);
  EXPECT_EQ(writer->newest()->manifest.digest, TestDigest(57));
  EXPECT_EQ(Must(TryPublish(*writer)).number(), 58u);
  // The run id need not be known.
  const auto other = Must(CatalogWriter::Resume(faulty_, {.run = "", .writer = "w3"}, clock_, rng_));
  EXPECT_EQ(other->run(), "run");
  ExpectAllComplete();
}

TEST_F(CatalogWriterTest, ResumeRefusesWhatItCannotContinue) {
  EXPECT_EQ(CodeOf(CatalogWriter::Resume(faulty_, {.run = "run", .writer = "w"}, clock_, rng_)),
            Code::kNotFound);
  Must(TryPublish(*NewRun()));
  EXPECT_EQ(CodeOf(CatalogWriter::Resume(faulty_, {.run = "other", .writer = "w"}, clock_, rng_)),
            Code::kWrongRun);
  Overwrite("manifests/00000000.json", "garbage");
  EXPECT_EQ(CodeOf(CatalogWriter::Resume(faulty_, {.run = "run", .writer = "w"}, clock_, rng_)),
            Code::kCorrupt);
}

TEST_F(CatalogWriterTest, BadSettingsFailAtStart) {
  for (const char* id : {"", "a/b", "..", "a b"}) {
    EXPECT_EQ(CodeOf(CatalogWriter::Create(faulty_, {.run = "run", .writer = id}, clock_, rng_)),
              Code::kInvalidArgument);
    EXPECT_EQ(CodeOf(CatalogWriter::Resume(faulty_, {.run = "run", .writer = id}, clock_, rng_)),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(CodeOf(CatalogWriter::Create(faulty_, {.run = "", .writer = "w"}, clock_, rng_)),
            Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(CatalogWriter::Create(faulty_, {.run = "a\nb", .writer = "w"}, clock_, rng_)),
            Code::kInvalidArgument);
}

TEST_F(CatalogWriterTest, AStoreWithoutExclusiveCreateNeedsADeclaredSingleWriter) {
  const auto store = std::make_shared<MemoryStore>(clock_, MemoryStore::Options{.create_if_absent = false});
  const auto refused = CatalogWriter::Create(store, {.run = "run", .writer = "w"}, clock_, rng_);
  EXPECT_EQ(CodeOf(refused), Code::kUnsupported);
  EXPECT_NE(refused.error().message().find("single_writer"), std::string::npos);
  const auto writer =
      Must(CatalogWriter::Create(store, {.run = "run", .writer = "w", .single_writer = true}, clock_, rng_));
  for (int i = 0; i < 3; ++i) Must(TryPublish(*writer));
  Must(TryWriteAnchor(*writer, *writer->newest()));
  EXPECT_EQ(CodeOf(CatalogWriter::Resume(store, {.run = "run", .writer = "v"}, clock_, rng_)),
            Code::kUnsupported);
  // Even so a version that is there already is noticed.
  const auto second =
      Must(CatalogWriter::Resume(store, {.run = "run", .writer = "v", .single_writer = true}, clock_, rng_));
  Must(TryPublish(*writer));
  EXPECT_EQ(CodeOf(TryPublish(*second)), Code::kFenced);
}

TEST_F(CatalogWriterTest, TheManifestComesAfterAllItLists) {
  const auto writer = NewRun();
  faulty_->ClearCalls();
  Must(TryPublish(*writer));
  std::vector<std::string> written;
  for (const auto& call : faulty_->calls())
    if (call.operation == StoreOperation::kPut || call.operation == StoreOperation::kCommit)
      written.push_back(call.name);
  ASSERT_EQ(written.size(), 5u);
  EXPECT_TRUE(written[0].starts_with("inventory-"));
  EXPECT_TRUE(written[1].ends_with("-part-00000.safetensors"));
  EXPECT_TRUE(written[2].ends_with("-digests.bin"));
  EXPECT_EQ(written[3], "manifests/00000000.json");
  EXPECT_EQ(written[4], "LATEST");
}

TEST_F(CatalogWriterTest, AnAbandonedAttemptLeavesNothing) {
  const auto writer = NewRun();
  Must(TryPublish(*writer));
  const auto before = Names("");
  {
    const auto attempt = Must(writer->BeginVersion(1));
    const ByteSpan piece = AsBytes("part");
    Must(attempt->PutPart({&piece, 1}));
    Must(attempt->PutPart({&piece, 1}));
    EXPECT_EQ(Names("").size(), before.size() + 2);
    EXPECT_EQ(CodeOf(writer->BeginVersion(1)), Code::kInvalidArgument) << "one attempt at a time";
  }
  EXPECT_EQ(Names(""), before);
  EXPECT_FALSE(writer->unsettled());
  EXPECT_EQ(Must(TryPublish(*writer)).number(), 1u);
}

TEST_F(CatalogWriterTest, SealChecksWhatTheManifestClaims) {
  const auto writer = NewRun();
  Must(TryPublish(*writer));
  const auto zero = *writer->newest();
  const auto attempt = Must(writer->BeginVersion(1));
  const ByteSpan piece = AsBytes("part");
  const auto part = Must(attempt->PutPart({&piece, 1}));
  format::Manifest good;
  good.inventory = zero.manifest.inventory;
  good.digest = TestDigest(1);
  good.parts = {{part, "step", {0, 1, part.sha256}}};
  good.base = BaseOn(zero);
  EXPECT_EQ(CodeOf(attempt->Commit()), Code::kInvalidArgument) << "not sealed";

  const auto refuses = [&](Code code, const auto& change) {
    auto bad = good;
    change(bad);
    EXPECT_EQ(CodeOf(attempt->Seal(bad)), code);
  };
  refuses(Code::kInvalidArgument, [](auto& m) { m.parts.clear(); });
  refuses(Code::kInvalidArgument, [](auto& m) { m.parts.push_back(m.parts[0]); });
  refuses(Code::kInvalidArgument, [](auto& m) { m.parts[0].object.bytes += 1; });
  refuses(Code::kInvalidArgument, [](auto& m) { m.tensor_digests = m.parts[0].object; });
  refuses(Code::kInvalidArgument, [](auto& m) { m.base.manifest = std::string(64, '0'); });
  refuses(Code::kInvalidArgument, [](auto& m) { m.base.digest = TestDigest(9); });
  refuses(Code::kInvalidArgument, [](auto& m) { m.base.number = 1; });
  refuses(Code::kInvalidArgument, [](auto& m) { m.inventory = "x"; });
  refuses(Code::kMismatch, [](auto& m) { m.inventory = std::string(64, '0'); });

  const auto record = Must(attempt->Seal(good));
  EXPECT_EQ(record.manifest.run, "run");
  EXPECT_EQ(record.manifest.writer, "w1");
  EXPECT_EQ(record.manifest.attempt, attempt->attempt());
  EXPECT_EQ(CodeOf(attempt->Seal(good)), Code::kInvalidArgument) << "once";
  EXPECT_EQ(CodeOf(attempt->PutPart({&piece, 1})), Code::kInvalidArgument) << "sealed";
  EXPECT_EQ(CodeOf(Reader().Load(1)), Code::kNotFound) << "sealed is not published";
  Must(attempt->Commit());
  Must(attempt->Commit());
  EXPECT_EQ(Must(Reader().Load(1)), record);
}

TEST_F(CatalogWriterTest, AliasesCarryNoBytes) {
  const auto writer = NewRun();
  for (int i = 0; i < 3; ++i) Must(TryPublish(*writer));
  const auto original = Must(Reader().Load(1));
  const auto attempt = Must(writer->BeginVersion(3));
  format::Manifest manifest;
  manifest.inventory = original.manifest.inventory;
  manifest.alias_of = 1;
  manifest.base = BaseOn(original);
  manifest.digest = TestDigest(3);
  EXPECT_EQ(CodeOf(attempt->Seal(manifest)), Code::kInvalidArgument) << "not the original's digest";
  manifest.digest = TestDigest(1);
  Must(attempt->Seal(manifest));
  Must(attempt->Commit());
  const auto path =
      Must(Reader().Plan({.position = {.version = 1, .digest = {}}, .target = 3, .codings = {}}));
  EXPECT_TRUE(path.steps.empty());
}

TEST_F(CatalogWriterTest, ADamagedInventoryIsWrittenAgain) {
  const auto writer = NewRun();
  const auto hash = Must(writer->PutInventory(TestInventory()));
  const auto name = format::InventoryName(hash);
  Overwrite(name, "garbage");
  EXPECT_EQ(Must(writer->PutInventory(TestInventory())), hash);
  EXPECT_EQ(*Must(Reader().LoadInventory(hash)), TestInventory());
}

}  // namespace
}  // namespace deltawire::sync
