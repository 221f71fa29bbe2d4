#include <gtest/gtest.h>

#include "pubsub/test_trainer.h"
#include "store/fault/fault_store.h"

namespace deltawire::pubsub {
namespace {

class PubSub : public testing::Test {
 protected:
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>(trainer_.clock());
  TestTrainer trainer_{21};
  TestEngine Engine(bool clone_head = false) {
    return {trainer_.Served(), store_, trainer_.clock(), clone_head};
  }
};

TEST_F(PubSub, TwoEnginesFollowAtAnyInterval) {
  TestEngine early = Engine();
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  ASSERT_TRUE(publisher);
  TestEngine cloned = Engine(true);
  for (const int steps : {1, 2, 0, 5, 1}) {
    for (int i = 0; i < steps; ++i) trainer_.Step(publisher.get());
    const auto published = publisher->Publish();
    ASSERT_TRUE(published) << published.error().message();
    EXPECT_EQ(published->steps, static_cast<uint64_t>(steps));
    EXPECT_TRUE(published->notes.empty());
    for (TestEngine* engine : {&early, &cloned}) {
      const auto updated = (*engine)->Update();
      ASSERT_TRUE(updated) << updated.error().message();
      EXPECT_EQ(updated->number, published->number);
      EXPECT_EQ((*engine)->digest().value(), published->digest);
      EXPECT_EQ(engine->Holds(), trainer_.Served());
      EXPECT_TRUE((*engine)->Verify());
    }
  }
}

TEST_F(PubSub, MEM_07_APublishAndAnUpdateMakeTheSameStoreCallsAtAnyAge) {
  const auto counted = std::make_shared<FaultStore>(store_, trainer_.clock());
  auto publisher = trainer_.Publish(trainer_.Options(counted));
  TestEngine engine(trainer_.Served(), counted, trainer_.clock());
  // By what is done, not by names: versions have numbers.
  const auto operations = [&] {
    std::vector<StoreOperation> made;
    for (const auto& call : counted->calls()) made.push_back(call.operation);
    counted->ClearCalls();
    return made;
  };
  std::vector<StoreOperation> publishing, updating;
  for (int version = 1; version <= 200; ++version) {
    trainer_.Step(publisher.get());
    operations();
    ASSERT_TRUE(publisher->Publish());
    const auto published = operations();
    ASSERT_TRUE(engine->Update());
    const auto updated = operations();
    if (version == 2) {  // the first update attaches
      publishing = published;
      updating = updated;
      EXPECT_EQ(std::count(updating.begin(), updating.end(), StoreOperation::kList), 0);
    }
    if (version > 2) {
      ASSERT_EQ(published, publishing) << version;
      ASSERT_EQ(updated, updating) << version;
    }
  }
}

TEST_F(PubSub, VER_02_AnEmptyVersionIsAVersion) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  TestEngine engine = Engine();
  for (uint64_t number = 1; number <= 3; ++number) {
    const auto published = publisher->Publish();
    ASSERT_TRUE(published);
    EXPECT_EQ(published->number, number);
    EXPECT_EQ(published->sent, 0u);
    EXPECT_EQ(engine->Update()->number, number);
  }
}

TEST_F(PubSub, AJoinerCatchesUpFromAnyVersionAndFromNothing) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  std::vector<TestEngine> joiners;
  for (int i = 0; i < 4; ++i) {
    joiners.push_back(Engine());
    trainer_.Step(publisher.get());
    ASSERT_TRUE(publisher->Publish());
  }
  auto foreign = trainer_.Served();
  foreign["embed"][17] ^= 0x0100;
  joiners.emplace_back(foreign, store_, trainer_.clock());
  for (TestEngine& joiner : joiners) {
    const auto updated = joiner->Update();
    ASSERT_TRUE(updated) << updated.error().message();
    EXPECT_EQ(updated->number, 4u);
    EXPECT_EQ(joiner.Holds(), trainer_.Served());
  }
}

TEST_F(PubSub, StageLeavesTheEngineAloneAndRollbackPins) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  TestEngine engine = Engine();
  ASSERT_TRUE(engine->Update());
  EXPECT_FALSE(engine->Rollback());
  const auto before = trainer_.Served();
  trainer_.Step(publisher.get());
  ASSERT_TRUE(publisher->Publish());
  ASSERT_TRUE(engine->Stage());
  EXPECT_EQ(engine.Holds(), before);
  EXPECT_EQ(engine->version()->number, 0u);
  ASSERT_TRUE(engine->Commit());
  EXPECT_EQ(engine.Holds(), trainer_.Served());
  const auto back = engine->Rollback();
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->number, 0u);
  EXPECT_EQ(engine.Holds(), before);
  EXPECT_FALSE(engine->Update());
  EXPECT_FALSE(engine->Rollback());
  engine->Unpin();
  ASSERT_TRUE(engine->Update());
  EXPECT_EQ(engine.Holds(), trainer_.Served());
  EXPECT_FALSE(engine->Update(0));  // backwards only by Rollback
}

// Inversion that forgets the first changed element of every large call, as a wrong proof would.
void Forgetful(kernels::Source theta, kernels::Source m, kernels::Source v, kernels::Moments stored,
               const kernels::AdamwBand& band, uint32_t n, uint64_t canonical, uint64_t key,
               uint64_t lanes[2], kernels::Inverted* out) {
  kernels::CpuTable().invert_adamw(theta, m, v, stored, band, n, canonical, key, lanes, out);
  if (out->changed_count == 0) return;
  for (uint32_t i = 1; i < out->changed_count; ++i) {
    out->changed[i - 1] = out->changed[i];
    out->changed_old[i - 1] = out->changed_old[i];
  }
  --out->changed_count;
  // An element whose base is unknown: the publisher can't check its own arithmetic then.
  if (out->uncertain_count == 0 && out->changed_count > 0) {
    out->uncertain[0] = out->changed[out->changed_count - 1];
    out->uncertain_low[0] = 0;
    out->uncertain_span[0] = 0;
    out->uncertain_count = 1;
    --out->changed_count;
  }
}

TEST_F(PubSub, AMissedChangeIsRefusedByEveryReceiverAndRepairedByAnAnchor) {
  kernels::Table forgetful = kernels::CpuTable();
  forgetful.invert_adamw = Forgetful;
  PublisherOptions options = trainer_.Options(store_);
  options.backends.host = &forgetful;
  auto publisher = trainer_.Publish(std::move(options));
  TestEngine one = Engine();
  TestEngine two = Engine(true);
  ASSERT_TRUE(one->Update());
  ASSERT_TRUE(two->Update());
  const auto before = trainer_.Served();
  trainer_.Step(publisher.get());
  ASSERT_TRUE(publisher->Publish());
  for (TestEngine* engine : {&one, &two}) {
    const auto refused = (*engine)->Update();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kDetectorFault);
    EXPECT_NE(refused.error().message().find("detector"), std::string::npos) << refused.error().message();
    EXPECT_EQ(engine->Holds(), before);
    EXPECT_EQ((*engine)->version()->number, 0u);
    EXPECT_EQ((*engine)->refusals(), 1u);
  }
  const auto audit = publisher->Audit();
  ASSERT_TRUE(audit) << audit.error().message();
  EXPECT_GT(audit->different, 0u);
  EXPECT_FALSE(audit->first_wrong.empty());
  ASSERT_TRUE(publisher->WriteAnchor());
  for (TestEngine* engine : {&one, &two}) {
    const auto updated = (*engine)->Update();
    ASSERT_TRUE(updated) << updated.error().message();
    EXPECT_EQ(engine->Holds(), trainer_.Served());
  }
}

// Blocks of several tensors are placed in the base that the updates before them make.
TEST_F(PubSub, AuditRebuildsJointBlocksOfClassCoding) {
  PublisherOptions options = trainer_.Options(store_);
  options.codings = {codec::Coding::kClass};
  auto publisher = trainer_.Publish(options);
  for (int i = 0; i < 4; ++i) {
    trainer_.Step(publisher.get());
    ASSERT_TRUE(publisher->Publish());
  }
  const auto audit = publisher->Audit();
  ASSERT_TRUE(audit) << audit.error().message();
  EXPECT_EQ(audit->compared, audit->elements);
  EXPECT_EQ(audit->different + audit->blocks_wrong, 0u);
}

TEST_F(PubSub, AuditRebuildsWhatReceiversHave) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  for (int i = 0; i < 3; ++i) {
    trainer_.Step(publisher.get());
    ASSERT_TRUE(publisher->Publish());
  }
  auto audit = publisher->Audit();
  ASSERT_TRUE(audit) << audit.error().message();
  EXPECT_EQ(audit->number, 3u);
  EXPECT_EQ(audit->compared, audit->elements);
  EXPECT_EQ(audit->different + audit->blocks_wrong, 0u);
  trainer_.Step(publisher.get());
  audit = publisher->Audit();
  ASSERT_TRUE(audit);
  EXPECT_LT(audit->compared, audit->elements);
  EXPECT_EQ(audit->blocks_wrong, 0u);
  EXPECT_FALSE(publisher->WriteAnchor());  // the weights have moved on
}

TEST_F(PubSub, AFlippedBitInAnEngineIsFoundAndRepaired) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  TestEngine engine = Engine();
  ASSERT_TRUE(engine->Update());
  engine.Bits("layer.weight")[5] ^= 1;
  const auto verified = engine->Verify();
  ASSERT_FALSE(verified);
  EXPECT_NE(verified.error().message().find("layer.weight"), std::string::npos);
  for (int i = 0; i < 40 && engine.Bits("layer.weight")[5] != trainer_.Served()["layer.weight"][5]; ++i) {
    trainer_.Step(publisher.get(), 1e-2);
    ASSERT_TRUE(publisher->Publish());
    ASSERT_TRUE(engine->Update());  // through the anchor of version 0 once a delta touches the element
  }
  EXPECT_EQ(engine.Holds(), trainer_.Served());
  EXPECT_TRUE(engine->Verify());
}

TEST_F(PubSub, AfterAFailedVerifyOnlyAFullStateIsTaken) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  TestEngine engine = Engine();
  ASSERT_TRUE(engine->Update());
  for (const bool stepped : {false, true}) {
    if (stepped) {
      trainer_.Step(publisher.get());
      ASSERT_TRUE(publisher->Publish());
    }
    engine.Bits("buffer")[1] ^= 1;  // no step touches it
    ASSERT_FALSE(engine->Verify());
    const auto updated = engine->Update();
    ASSERT_TRUE(updated) << updated.error().message();
    EXPECT_EQ(engine.Holds(), trainer_.Served());
    EXPECT_TRUE(engine->Verify());
  }
}

TEST_F(PubSub, BackgroundUploadsArePublishedInOrder) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  TestEngine engine = Engine();
  for (int i = 0; i < 5; ++i) {
    trainer_.Step(publisher.get());
    const auto served = trainer_.Served();
    ASSERT_TRUE(publisher->Publish(false));
    trainer_.Step(publisher.get());  // moves while the upload runs
    ASSERT_TRUE(publisher->Flush());
    ASSERT_TRUE(engine->Update());
    EXPECT_EQ(engine.Holds(), served);
  }
}

TEST_F(PubSub, VER_10_ResumeContinuesTheNumbers) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  TestEngine engine = Engine();
  for (int i = 0; i < 3; ++i) {
    trainer_.Step(publisher.get());
    ASSERT_TRUE(publisher->Publish());
  }
  ASSERT_TRUE(engine->Update());
  const auto saved = publisher->state();
  ASSERT_TRUE(saved);
  publisher.reset();

  const auto without = Publisher::Open(trainer_.Options(store_), trainer_.Tensors());
  ASSERT_FALSE(without);
  EXPECT_EQ(without.error().code(), Code::kExists);

  PublisherOptions same = trainer_.Options(store_);
  same.resume = true;
  same.continuity = *saved;
  publisher = trainer_.Publish(std::move(same));
  EXPECT_EQ(publisher->opened().number, 4u);
  EXPECT_EQ(publisher->opened().bytes, 0u);  // an alias
  ASSERT_TRUE(engine->Update());
  EXPECT_EQ(engine->version()->number, 4u);

  trainer_.Step(nullptr);  // steps that were never published, and a restart
  publisher.reset();
  PublisherOptions other = trainer_.Options(store_);
  other.resume = true;
  publisher = trainer_.Publish(std::move(other));
  EXPECT_EQ(publisher->opened().number, 5u);
  trainer_.Step(publisher.get());
  ASSERT_TRUE(publisher->Publish());
  const auto updated = engine->Update();
  ASSERT_TRUE(updated) << updated.error().message();
  EXPECT_EQ(updated->number, 6u);
  EXPECT_EQ(engine.Holds(), trainer_.Served());
}

TEST_F(PubSub, AResumedRunKeepsTheRuleItBeganWith) {
  {
    trainer_.Publish(trainer_.Options(store_));
  }
  PublisherOptions options = trainer_.Options(store_);
  options.resume = true;
  options.cast_rule = "said otherwise";
  auto publisher = trainer_.Publish(std::move(options));
  ASSERT_TRUE(publisher);
  EXPECT_EQ(publisher->inventory().cast_rule, "F32 served as BF16");
}

TEST_F(PubSub, VER_11_AnotherModelDoesNotGoOutOnASavedStream) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  trainer_.Step(publisher.get());
  ASSERT_TRUE(publisher->Publish());
  const auto saved = publisher->state();
  ASSERT_TRUE(saved);
  publisher.reset();
  TestTrainer wrong(99);
  PublisherOptions options = wrong.Options(store_);
  options.resume = true;
  options.continuity = *saved;
  const auto refused = Publisher::Open(std::move(options), wrong.Tensors());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kMismatch) << refused.error().message();
}

TEST_F(PubSub, ASecondPublisherFencesTheFirst) {
  auto first = trainer_.Publish(trainer_.Options(store_));
  PublisherOptions options = trainer_.Options(store_);
  options.resume = true;
  auto second = trainer_.Publish(std::move(options));
  trainer_.Step(second.get());
  ASSERT_TRUE(second->Publish());
  for (int i = 0; i < 2; ++i) {
    const auto refused = first->Publish();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kFenced);
  }
}

// Every store call of a publish fails once, or loses its answer: the publish after it carries everything.
TEST_F(PubSub, STO_06_AFailureAtAnyCallLosesNothing) {
  for (const FaultKind kind : {FaultKind::kFail, FaultKind::kLoseAnswer}) {
    for (const Code code : {Code::kIo, Code::kNoSpace}) {
      if (kind == FaultKind::kLoseAnswer && code == Code::kNoSpace) continue;
      bool reached = true;
      for (uint64_t nth = 0; reached; ++nth) {
        TestTrainer trainer(5);
        auto inner = std::make_shared<MemoryStore>(trainer.clock());
        auto faulty = std::make_shared<FaultStore>(inner, trainer.clock());
        auto publisher = trainer.Publish(trainer.Options(faulty));
        TestEngine engine(trainer.Served(), inner, trainer.clock());
        trainer.Step(publisher.get());
        const uint64_t before = faulty->calls().size();
        faulty->Add({.kind = kind, .nth = nth, .times = 1, .code = code});
        const auto published = publisher->Publish();
        reached = faulty->calls().size() - before > nth;
        faulty->ClearFaults();
        trainer.Step(publisher.get());
        const auto next = publisher->Publish();
        ASSERT_TRUE(next) << next.error().message();
        const auto updated = engine->Update();
        ASSERT_TRUE(updated) << updated.error().message();
        EXPECT_EQ(updated->number, next->number);
        EXPECT_EQ(engine.Holds(), trainer.Served()) << "call " << nth;
      }
    }
  }
}

TEST_F(PubSub, STO_04_AMissingOrDamagedPartIsGoneRoundOrNamed) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  TestEngine engines[] = {Engine(), Engine(), Engine()};
  for (int i = 0; i < 3; ++i) {
    trainer_.Step(publisher.get());
    ASSERT_TRUE(publisher->Publish());
  }
  const auto parts = store_->List("updates/00000002/");
  ASSERT_TRUE(parts);
  ASSERT_FALSE(parts->empty());
  const Bytes whole = *store_->Get(parts->front().name, 1 << 20);
  for (const bool missing : {true, false}) {
    if (missing) {
      ASSERT_TRUE(store_->Delete(parts->front().name));
    } else {
      Bytes damaged = whole;
      damaged[damaged.size() / 2] ^= 1;
      ASSERT_TRUE(store_->Put(parts->front().name, damaged, Condition::kOverwrite));
    }
    TestEngine& engine = engines[missing ? 0 : 1];
    const auto refused = engine->Update(3);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("updates/00000002/"), std::string::npos)
        << refused.error().message();
    EXPECT_TRUE(engine->Update(1));  // what is intact still applies
  }
  ASSERT_TRUE(publisher->WriteAnchor());
  TestEngine& engine = engines[2];
  const auto updated = engine->Update();
  ASSERT_TRUE(updated) << updated.error().message();
  EXPECT_EQ(engine.Holds(), trainer_.Served());
}

TEST_F(PubSub, TheSameNumberWithOtherBitsIsNotTheSameVersion) {
  auto publisher = trainer_.Publish(trainer_.Options(store_));
  trainer_.Step(publisher.get());
  ASSERT_TRUE(publisher->Publish());
  TestEngine engine = Engine();
  ASSERT_TRUE(engine->Update());
  publisher.reset();
  // Version 1 is lost from the store; the trainer goes on and publishes the number again.
  ASSERT_TRUE(store_->Delete("manifests/00000001.json"));
  trainer_.Step(nullptr);
  PublisherOptions options = trainer_.Options(store_);
  options.resume = true;
  publisher = trainer_.Publish(std::move(options));
  ASSERT_EQ(publisher->opened().number, 1u);
  const auto updated = engine->Update();
  ASSERT_TRUE(updated) << updated.error().message();
  EXPECT_EQ(engine.Holds(), trainer_.Served());
  EXPECT_FALSE(updated->notes.empty());

  // Another run under the same numbers is refused by name.
  const auto before = engine.Holds();
  const auto objects = *store_->List("");
  for (const auto& object : objects) ASSERT_TRUE(store_->Delete(object.name));
  TestTrainer other(77);
  auto foreign = other.Publish(other.Options(store_));
  other.Step(foreign.get());
  ASSERT_TRUE(foreign->Publish());
  const auto refused = engine->Update();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kWrongRun) << refused.error().message();
  EXPECT_EQ(engine.Holds(), before);
}

TEST_F(PubSub, VER_12_AnOldRunInThePlaceIsNotContinuedByAccident) {
  {
    trainer_.Publish(trainer_.Options(store_));
  }
  TestTrainer other(3);
  const auto refused = Publisher::Open(other.Options(store_), other.Tensors());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("resume"), std::string::npos) << refused.error().message();
}

}  // namespace
}  // namespace deltawire::pubsub
