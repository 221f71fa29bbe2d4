#include "pubsub/folder_target.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "format/safetensors.h"
#include "pubsub/file_io.h"
#include "pubsub/journal.h"
#include "pubsub/patch_file.h"
#include "pubsub/test_trainer.h"

namespace deltawire::pubsub {
namespace {

namespace fs = std::filesystem;

class FolderTargetTest : public testing::Test {
 protected:
  FolderTargetTest() {
    root_ = fs::temp_directory_path() / ("deltawire-folder-" + SystemRng().HexId(12));
    fs::create_directory(root_);
  }
  ~FolderTargetTest() override { fs::remove_all(root_); }

  // A checkpoint with the trainer's present served bits.
  std::string WriteCheckpoint(const std::string& name) {
    const std::map<std::string, Shape> shapes = {{"embed", {300, 16}},
                                                 {"layer.weight", {64, 48}},
                                                 {"layer.bias", {48}},
                                                 {"buffer", {5}},
                                                 {"empty", {0, 4}}};
    std::vector<format::SafetensorsEntry> entries;
    for (const auto& [tensor, shape] : shapes) entries.push_back({tensor, Dtype::kBf16, shape, 0, 0});
    entries = *format::LayoutCheckpoint(entries);
    Bytes file = *format::WriteSafetensorsHeader(entries, {{"format", "pt"}});
    const auto served = trainer_.Served();
    for (const auto& entry : entries) {
      for (const uint16_t bits : served.at(entry.name)) AppendLe(bits, file);
    }
    const std::string folder = (root_ / name).string();
    fs::create_directory(folder);
    const ByteSpan pieces[] = {file};
    EXPECT_TRUE(WriteFileDurably(folder + "/model.safetensors", pieces));
    return folder;
  }
  static std::string FileBytes(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::unique_ptr<Subscriber> Follow(FolderTarget& target) {
    SubscriberOptions options;
    options.store = store_;
    options.observer = &target;
    auto opened = Subscriber::Open(options, target.Targets());
    EXPECT_TRUE(opened);
    return *std::move(opened);
  }

  fs::path root_;
  TestTrainer trainer_{31};
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>(trainer_.clock());
};

TEST_F(FolderTargetTest, FollowsInPlaceAndRollsBack) {
  const std::string folder = WriteCheckpoint("engine");
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  trainer_.Step(publisher.get());
  ASSERT_TRUE(publisher->Publish());
  const std::string before = FileBytes(folder + "/model.safetensors");
  const std::string wanted = FileBytes(WriteCheckpoint("wanted") + "/model.safetensors");
  auto target = FolderTarget::Open(folder);
  ASSERT_TRUE(target) << target.error().message();
  EXPECT_EQ(FolderTarget::Open(folder).error().code(), Code::kExists);
  auto subscriber = Follow(**target);
  const auto updated = subscriber->Update();
  ASSERT_TRUE(updated) << updated.error().message();
  EXPECT_EQ(FileBytes(folder + "/model.safetensors"), wanted);
  EXPECT_FALSE(fs::exists(folder + "/.deltawire/journal"));
  EXPECT_NE(FileBytes(folder + "/.deltawire/state.json").find("\"number\":1"), std::string::npos);
  ASSERT_TRUE(subscriber->Rollback());
  EXPECT_EQ(FileBytes(folder + "/model.safetensors"), before);
}

TEST_F(FolderTargetTest, ACompleteJournalIsFinishedAndATornOneDropped) {
  const std::string folder = WriteCheckpoint("engine");
  const std::string before = FileBytes(folder + "/model.safetensors");
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  trainer_.Step(publisher.get());
  ASSERT_TRUE(publisher->Publish());
  const std::string wanted = FileBytes(WriteCheckpoint("wanted") + "/model.safetensors");

  // The journal of the commit, without the commit: an observer that stops after writing it.
  class Crash final : public CommitObserver {
   public:
    explicit Crash(FolderTarget& target) : target_(target) {}
    Status BeforeWrite(const Write& write) override {
      DELTAWIRE_TRY(target_.BeforeWrite(write));
      return Fail(Code::kCancelled, "killed");
    }
    Status AfterWrite(const Write&) override { return {}; }

   private:
    FolderTarget& target_;
  };
  const std::string journal = folder + "/.deltawire/journal";
  {
    auto target = FolderTarget::Open(folder);
    ASSERT_TRUE(target);
    Crash crash(**target);
    SubscriberOptions options;
    options.store = store_;
    options.observer = &crash;
    auto subscriber = *Subscriber::Open(options, (*target)->Targets());
    const auto cancelled = subscriber->Update();
    ASSERT_FALSE(cancelled);
    EXPECT_EQ(cancelled.error().code(), Code::kCancelled);
    EXPECT_EQ(FileBytes(folder + "/model.safetensors"), before);
  }
  const std::string complete = FileBytes(journal);
  ASSERT_FALSE(complete.empty());
  for (const size_t length : {size_t{0}, size_t{7}, complete.size() / 2, complete.size() - 1}) {
    std::ofstream(journal, std::ios::binary | std::ios::trunc) << complete.substr(0, length);
    const auto target = FolderTarget::Open(folder);
    ASSERT_TRUE(target) << target.error().message();
    EXPECT_FALSE((*target)->recovered());
    EXPECT_EQ(FileBytes(folder + "/model.safetensors"), before);
    EXPECT_FALSE(fs::exists(journal));
  }
  std::ofstream(journal, std::ios::binary | std::ios::trunc) << complete;
  const auto target = FolderTarget::Open(folder);
  ASSERT_TRUE(target) << target.error().message();
  EXPECT_TRUE((*target)->recovered());
  EXPECT_EQ(FileBytes(folder + "/model.safetensors"), wanted);
}

TEST_F(FolderTargetTest, PatchesBetweenCheckpoints) {
  const std::string before = WriteCheckpoint("before");
  trainer_.Step(nullptr);
  const std::string after = WriteCheckpoint("after");
  const std::string patch = (root_ / "p.safetensors").string();
  const auto made = DiffCheckpoints(before, after, patch, PatchOptions());
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_GT(made->changed, 0u);
  const std::string out = (root_ / "out").string();
  const auto applied = ApplyPatch(before, patch, out, PatchOptions());
  ASSERT_TRUE(applied) << applied.error().message();
  EXPECT_EQ(FileBytes(out + "/model.safetensors"), FileBytes(after + "/model.safetensors"));
  EXPECT_EQ(applied->digest, *DigestCheckpoint(after, PatchOptions()));
  EXPECT_EQ(ApplyPatch(before, patch, out, PatchOptions()).error().code(), Code::kExists);
  EXPECT_EQ(ApplyPatch(after, patch, out + "2", PatchOptions()).error().code(), Code::kWrongBase);
  EXPECT_FALSE(fs::exists(out + "2"));
  EXPECT_TRUE(VerifyPatch(patch, PatchOptions()));
}

TEST_F(FolderTargetTest, VersionZeroIsAPatchOnTheBase) {
  const std::string folder = WriteCheckpoint("base");
  trainer_.Step(nullptr);  // the trainer is a step ahead of the checkpoint that engines have
  const auto base = Checkpoint::Open(folder);
  ASSERT_TRUE(base);
  PublisherOptions options = trainer_.Options(store_);
  options.base = folder;
  auto publisher = trainer_.Publish(std::move(options));
  ASSERT_TRUE(publisher);
  EXPECT_GT(publisher->opened().sent, 0u);
  trainer_.Step(publisher.get());
  ASSERT_TRUE(publisher->Publish());
  const auto audit = publisher->Audit();
  ASSERT_TRUE(audit) << audit.error().message();
  EXPECT_EQ(audit->different + audit->blocks_wrong, 0u);
  auto engine = FolderTarget::Open(folder);
  ASSERT_TRUE(engine);
  auto subscriber = Follow(**engine);
  const auto updated = subscriber->Update();
  ASSERT_TRUE(updated) << updated.error().message();
  EXPECT_EQ(FileBytes(folder + "/model.safetensors"),
            FileBytes(WriteCheckpoint("wanted") + "/model.safetensors"));
}

}  // namespace
}  // namespace deltawire::pubsub
