#include "pubsub/follow.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "format/object_names.h"
#include "pubsub/identify.h"
#include "pubsub/materialize.h"
#include "pubsub/test_trainer.h"
#include "pubsub/verify_run.h"

namespace deltawire::pubsub {
namespace {

namespace fs = std::filesystem;

class FollowTest : public testing::Test {
 protected:
  void SetUp() override {
    PublisherOptions options = trainer_.Options(store_);
    options.anchor_every = 3;
    publisher_ = trainer_.Publish(std::move(options));
  }
  void PublishNext() {
    trainer_.Step(publisher_.get());
    const auto published = publisher_->Publish();
    ASSERT_TRUE(published) << published.error().message();
  }
  // Flips a bit of every part of a version.
  void Damage(uint64_t number) {
    const auto parts = store_->List(fmt::format("updates/{:08}/", number));
    ASSERT_TRUE(parts);
    for (const auto& part : *parts) {
      Bytes bytes = store_->Get(part.name, part.size_bytes).value();
      bytes.back() ^= 1;
      ASSERT_TRUE(store_->Put(part.name, bytes, Condition::kOverwrite));
    }
  }
  FollowOptions Options() {
    FollowOptions options;
    options.timeout_ms = 5'000;
    options.committed = [this](const Version& version) { committed_.push_back(version.number); };
    options.refused = [this](uint64_t number, const Error& error) {
      refused_.emplace_back(number, error.code());
    };
    return options;
  }

  TestTrainer trainer_{33};
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>(trainer_.clock());
  std::unique_ptr<Publisher> publisher_;
  std::vector<uint64_t> committed_;
  std::vector<std::pair<uint64_t, Code>> refused_;
};

TEST_F(FollowTest, EndsAtTheNewestWhenNothingNewerComes) {
  TestEngine engine(trainer_.Served(), store_, trainer_.clock());
  PublishNext();
  const auto last = Follow(*engine.operator->(), Options());
  ASSERT_TRUE(last) << last.error().message();
  EXPECT_EQ((*last)->number, 1u);
  EXPECT_EQ(committed_, std::vector<uint64_t>{1});
  uint64_t current = 99;
  FollowOptions again = Options();
  again.once = true;
  again.current = [&](const Version& version) { current = version.number; };
  ASSERT_TRUE(Follow(*engine.operator->(), again));
  EXPECT_EQ(current, 1u);
  EXPECT_EQ(committed_.size(), 1u);
}

TEST_F(FollowTest, ARefusedVersionIsToldOnceAndTheNextOneTaken) {
  TestEngine engine(trainer_.Served(), store_, trainer_.clock());
  const auto before = trainer_.Served();
  PublishNext();
  Damage(1);
  FollowOptions options = Options();
  options.timeout_ms = 60'000;
  ASSERT_TRUE(Follow(*engine.operator->(), options));
  EXPECT_EQ(refused_, (std::vector<std::pair<uint64_t, Code>>{{1, Code::kCorrupt}}));
  EXPECT_EQ(engine.Holds(), before);
  PublishNext();
  PublishNext();  // with an anchor
  ASSERT_TRUE(Follow(*engine.operator->(), options));
  EXPECT_EQ(committed_, std::vector<uint64_t>{3});
  EXPECT_EQ(engine.Holds(), trainer_.Served());
}

TEST_F(FollowTest, ACancelledFollowerReturnsWithoutError) {
  TestEngine engine(trainer_.Served(), store_, trainer_.clock());
  std::stop_source stop;
  FollowOptions options = Options();
  options.timeout_ms.reset();
  options.committed = [&](const Version&) { stop.request_stop(); };
  PublishNext();
  const auto last = Follow(*engine.operator->(), options, stop.get_token());
  ASSERT_TRUE(last);
  EXPECT_EQ((*last)->number, 1u);
}

TEST_F(FollowTest, VerifyRunCountsAndNamesTheFirstBadObject) {
  for (int i = 0; i < 4; ++i) PublishNext();
  sync::Catalog catalog(store_);
  const auto good = VerifyRun(catalog, VerifyRunOptions());
  ASSERT_TRUE(good) << good.error().message();
  EXPECT_TRUE(good->faults.empty());
  EXPECT_EQ(good->versions, 5u);
  EXPECT_EQ(good->links, 4u);
  EXPECT_EQ(good->parts, 4u);
  EXPECT_EQ(good->anchors, 2u);
  Damage(2);
  const auto bad = VerifyRun(catalog, VerifyRunOptions());
  ASSERT_TRUE(bad);
  ASSERT_EQ(bad->faults.size(), 1u);
  EXPECT_TRUE(bad->faults[0].object.starts_with("updates/00000002/"));
  EXPECT_EQ(bad->faults[0].error.code(), Code::kCorrupt);
}

class MaterializeTest : public FollowTest {
 protected:
  void SetUp() override {
    FollowTest::SetUp();
    ASSERT_TRUE(fs::create_directories(folder_));
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder_ = fs::path(testing::TempDir()) / fmt::format("materialize-{}", SystemRng().HexId(8));
};

TEST_F(MaterializeTest, TheNewestAnchorAtOrBelowAVersionIsThatVersion) {
  for (int i = 0; i < 4; ++i) PublishNext();
  sync::Catalog catalog(store_);
  for (const auto& [at_most, expected] :
       std::vector<std::pair<std::optional<uint64_t>, uint64_t>>{{std::nullopt, 3}, {3, 3}, {2, 0}, {0, 0}}) {
    const std::string to = fmt::format("{}/{}-{}/", folder_, expected, at_most.value_or(9));
    const auto number = MaterializeAnchor(catalog, to, {.at_most = at_most, .progress = nullptr});
    ASSERT_TRUE(number) << number.error().message();
    EXPECT_EQ(*number, expected);
    const auto identity = IdentifyCheckpoint(to, catalog, device::HostBackends(), Parallel(1));
    ASSERT_TRUE(identity) << identity.error().message();
    EXPECT_EQ(identity->versions, std::vector<uint64_t>{expected});
    EXPECT_EQ(identity->newest, 4u);
  }
}

TEST_F(MaterializeTest, ADamagedAnchorLeavesNothing) {
  const std::string name = format::AnchorDir(0) + "/model.safetensors";
  Bytes bytes = store_->Get(name, 1 << 20).value();
  bytes.back() ^= 1;
  ASSERT_TRUE(store_->Put(name, bytes, Condition::kOverwrite));
  sync::Catalog catalog(store_);
  const auto made = MaterializeAnchor(catalog, folder_ + "/new", {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kCorrupt);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(MaterializeTest, AFolderWithFilesIsLeftAlone) {
  sync::Catalog catalog(store_);
  ASSERT_TRUE(fs::create_directory(folder_ + "/mine"));
  const auto made = MaterializeAnchor(catalog, folder_, {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kExists);
  EXPECT_TRUE(fs::exists(folder_ + "/mine"));
}

}  // namespace
}  // namespace deltawire::pubsub
