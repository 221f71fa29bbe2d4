#include "sync/path.h"

#include <gtest/gtest.h>

#include <map>

namespace deltawire::sync {
namespace {

using format::BaseRef;

// Records without a store. Patches cost 10 bytes, anchors 1000, a version has 500 elements.
class PathTest : public ::testing::Test {
 protected:
  static Digest DigestOf(uint64_t number) { return {{number + 1000, 5}}; }
  static std::string Hash(uint64_t number) { return fmt::format("sha-{}", number); }
  static constexpr auto kInventory = "inventory";

  VersionRecord& Add(uint64_t number, BaseRef base, std::vector<std::pair<std::string, uint64_t>> parts) {
    VersionRecord record;
    record.manifest.number = number;
    record.manifest.inventory = kInventory;
    record.manifest.digest = DigestOf(number);
    record.manifest.base = std::move(base);
    record.manifest.counts.total = 500;
    for (auto& [coding, bytes] : parts)
      record.manifest.parts.push_back({{fmt::format("p{}", number), bytes, ""}, coding, {}});
    record.sha256 = Hash(number);
    return versions_[number] = std::move(record);
  }
  VersionRecord& Patch(uint64_t number, uint64_t base, uint64_t bytes = 10) {
    return Add(number, On(base), {{"step", bytes}});
  }
  VersionRecord& Alias(uint64_t number, uint64_t original, BaseRef base = {}) {
    auto& record = Add(number, std::move(base), {});
    record.manifest.alias_of = original;
    record.manifest.digest = DigestOf(original);
    return record;
  }
  void Anchor(uint64_t number, uint64_t bytes = 1000) {
    format::AnchorManifest anchor;
    anchor.number = number;
    anchor.inventory = kInventory;
    anchor.digest = versions_.at(number).manifest.digest;
    anchor.manifest = versions_.at(number).sha256;
    anchor.files = {{"model.safetensors", bytes, ""}};
    anchors_[number] = anchor;
  }
  // Versions 0 (empty, no base) to last, each a patch on the one before; anchors where told.
  void Chain(uint64_t last, std::vector<uint64_t> anchors) {
    Add(0, {}, {});
    for (uint64_t number = 1; number <= last; ++number) Patch(number, number - 1);
    for (const auto number : anchors) Anchor(number);
  }
  BaseRef On(uint64_t base) const {
    const auto found = versions_.find(base);
    const auto digest = found == versions_.end() ? DigestOf(base) : found->second.manifest.digest;
    return {BaseRef::Kind::kVersion, base, Hash(base), digest};
  }

  Result<Path> Plan(PathRequest request) {
    version_loads_ = 0;
    anchor_loads_ = 0;
    anchor_lists_ = 0;
    return PlanPath(request, {.version = [this](uint64_t number) -> Result<VersionRecord> {
                                ++version_loads_;
                                if (unreachable_ == number) return Fail(Code::kIo, "connection reset");
                                if (broken_.contains(number))
                                  return Fail(Code::kCorrupt, "version {} is damaged", number);
                                if (!versions_.contains(number))
                                  return Fail(Code::kNotFound, "no version {}", number);
                                return versions_.at(number);
                              },
                              .anchors = [this]() -> Result<std::vector<uint64_t>> {
                                ++anchor_lists_;
                                std::vector<uint64_t> numbers;
                                for (const auto& [number, anchor] : anchors_) numbers.push_back(number);
                                return numbers;
                              },
                              .anchor = [this](uint64_t number) -> Result<format::AnchorManifest> {
                                ++anchor_loads_;
                                return anchors_.at(number);
                              }});
  }
  static PathRequest From(std::optional<uint64_t> version, uint64_t target) {
    return {.position = {.version = version, .digest = std::nullopt}, .target = target, .codings = {}};
  }
  static PathRequest FromDigest(Digest digest, uint64_t target) {
    return {.position = {.version = std::nullopt, .digest = digest}, .target = target, .codings = {}};
  }
  // "anchor 4, patch 5, patch 6", or the error's code.
  std::string Steps(const PathRequest& request) {
    const auto path = Plan(request);
    if (!path) {
      message_ = path.error().message();
      return std::string(CodeName(path.error().code()));
    }
    std::string text;
    for (const auto& step : path->steps)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                          step.kind == Step::Kind::kAnchor ? "anchor" : "patch", step.record.number());
    EXPECT_EQ(path->target.number(), request.target);
    return text;
  }

  std::map<uint64_t, VersionRecord> versions_;
  std::map<uint64_t, format::AnchorManifest> anchors_;
  std::map<uint64_t, bool> broken_;
  std::optional<uint64_t> unreachable_;
  std::string message_;
  int version_loads_ = 0;
  int anchor_loads_ = 0;
  int anchor_lists_ = 0;
};

TEST_F(PathTest, NothingHeldStartsAtTheNearestAnchor) {
  Chain(6, {0, 4});
  EXPECT_EQ(Steps(From(std::nullopt, 6)), "anchor 4, patch 5, patch 6");
  EXPECT_EQ(Plan(From(std::nullopt, 6))->bytes, 1020u);
  EXPECT_EQ(Steps(From(std::nullopt, 4)), "anchor 4");
  EXPECT_EQ(Steps(From(std::nullopt, 3)), "anchor 0, patch 1, patch 2, patch 3");
}

TEST_F(PathTest, AVersionHeldGoesOnByPatches) {
  Chain(6, {0, 4});
  EXPECT_EQ(Steps(From(2, 6)), "patch 3, patch 4, patch 5, patch 6");
  EXPECT_EQ(Plan(From(2, 6))->start, 2u);
  EXPECT_EQ(Steps(From(6, 6)), "");
}

TEST_F(PathTest, FollowingCloselyCostsOneManifestWhateverTheAge) {
  Chain(300, {0});
  EXPECT_EQ(Steps({.position = {299, DigestOf(299)}, .target = 300, .codings = {}}), "patch 300");
  EXPECT_EQ(version_loads_, 1);
  EXPECT_EQ(anchor_lists_, 0);
  EXPECT_EQ(Steps(From(299, 300)), "patch 300");
  EXPECT_EQ(version_loads_, 2);
}

TEST_F(PathTest, AnAnchorIsTakenWhenItIsCheaperThanTheChain) {
  Add(0, {}, {});
  for (uint64_t number = 1; number <= 10; ++number) Patch(number, number - 1, 400);
  Anchor(8);
  EXPECT_EQ(Steps(From(2, 10)), "anchor 8, patch 9, patch 10");
  EXPECT_EQ(Steps(From(7, 10)), "patch 8, patch 9, patch 10");
}

TEST_F(PathTest, AnAnchorIsTakenWhenItIsCheaperThanOnePatch) {
  Chain(2, {0});
  Patch(3, 2, 1200);
  Anchor(3);
  EXPECT_EQ(Steps(From(2, 3)), "anchor 3");
  EXPECT_EQ(Steps(From(1, 3)), "anchor 3");
}

TEST_F(PathTest, ADigestFindsItsVersion) {
  Chain(6, {0});
  EXPECT_EQ(Steps(FromDigest(DigestOf(4), 6)), "patch 5, patch 6");
  EXPECT_EQ(Plan(FromDigest(DigestOf(4), 6))->start, 4u);
  EXPECT_EQ(Steps(FromDigest(DigestOf(6), 6)), "");
  EXPECT_EQ(Steps(FromDigest(Digest{{1, 2}}, 6)),
            "anchor 0, patch 1, patch 2, patch 3, patch 4, patch 5, patch 6");
}

TEST_F(PathTest, ACheckpointHeldIsABase) {
  const Digest checkpoint{{77, 78}};
  Add(0, {BaseRef::Kind::kCheckpoint, 0, "", checkpoint}, {{"step", 10}});
  Patch(1, 0);
  EXPECT_EQ(Steps(FromDigest(checkpoint, 1)), "patch 0, patch 1");
  EXPECT_EQ(Plan(FromDigest(checkpoint, 1))->start, std::nullopt);
  EXPECT_EQ(Steps(FromDigest(Digest{{1, 2}}, 1)), "wrong_base");
  EXPECT_NE(message_.find(checkpoint.Hex()), std::string::npos) << message_;
  EXPECT_NE(message_.find("write an anchor"), std::string::npos) << message_;
  EXPECT_EQ(Steps(From(std::nullopt, 1)), "wrong_base");
}

TEST_F(PathTest, AnEqualCheckpointNeedsNoPatch) {
  Add(0, {BaseRef::Kind::kCheckpoint, 0, "", DigestOf(0)}, {});
  Patch(1, 0);
  EXPECT_EQ(Steps(FromDigest(DigestOf(0), 1)), "patch 1");
}

TEST_F(PathTest, ADenseVersionNeedsNothing) {
  Add(0, {}, {{"dense", 900}});
  Patch(1, 0);
  EXPECT_EQ(Steps(From(std::nullopt, 1)), "patch 0, patch 1");
  EXPECT_EQ(Steps(FromDigest(Digest{{1, 2}}, 1)), "patch 0, patch 1");
  EXPECT_EQ(Steps(From(0, 1)), "patch 1");
}

TEST_F(PathTest, VER02_AnEmptyVersionCostsNoStep) {
  Chain(2, {0});
  auto& empty = Add(3, On(2), {});
  empty.manifest.digest = DigestOf(2);
  versions_[4] = {};
  Patch(4, 3).manifest.base.digest = DigestOf(2);
  EXPECT_EQ(Steps(From(1, 3)), "patch 2");
  EXPECT_EQ(Steps(From(2, 3)), "");
  EXPECT_EQ(Steps(From(2, 4)), "patch 4");
  EXPECT_EQ(Plan(From(2, 3))->target.number(), 3u);
}

TEST_F(PathTest, AliasesCostNothing) {
  Chain(5, {0});
  Alias(6, 3);  // resumed from version 3's weights
  Patch(7, 6);
  EXPECT_EQ(Steps(From(3, 7)), "patch 7");
  EXPECT_EQ(Steps(From(6, 7)), "patch 7");
  EXPECT_EQ(Steps(From(3, 6)), "");
  EXPECT_EQ(Steps(From(2, 7)), "patch 3, patch 7");
  // 5 holds what the run has given up: only an anchor leads from there.
  EXPECT_EQ(Steps(From(5, 7)), "anchor 0, patch 1, patch 2, patch 3, patch 7");
  Anchor(6);
  EXPECT_EQ(Steps(From(std::nullopt, 7)), "anchor 6, patch 7");
}

TEST_F(PathTest, AnAliasMustHaveItsOriginalsDigest) {
  Chain(2, {0});
  Alias(3, 1).manifest.digest = DigestOf(99);
  EXPECT_EQ(Steps(From(1, 3)), "corrupt");
  Alias(3, 1, On(1)).manifest.digest = DigestOf(99);
  EXPECT_EQ(Steps(From(1, 3)), "corrupt");
  Alias(3, 1, On(1));
  EXPECT_EQ(Steps(From(0, 3)), "patch 1");
}

TEST_F(PathTest, VER04_AHoleLeadsToAnAnchorOrAnErrorThatNamesIt) {
  Chain(6, {0});
  versions_.erase(3);
  EXPECT_EQ(Steps(From(2, 6)), "not_found");
  EXPECT_NE(message_.find("version 3, the base of version 4, is missing"), std::string::npos) << message_;
  EXPECT_NE(message_.find("write an anchor"), std::string::npos) << message_;
  EXPECT_EQ(Steps(From(std::nullopt, 6)), "not_found");
  EXPECT_EQ(Steps(From(2, 2)), "");
  Anchor(5);
  EXPECT_EQ(Steps(From(2, 6)), "anchor 5, patch 6");
  EXPECT_EQ(Steps(From(std::nullopt, 6)), "anchor 5, patch 6");
}

TEST_F(PathTest, AHeldVersionThatWasPrunedIsKnownByItsDigest) {
  Chain(6, {});
  versions_.erase(3);
  EXPECT_EQ(Steps({.position = {3, DigestOf(3)}, .target = 6, .codings = {}}), "patch 4, patch 5, patch 6");
  EXPECT_EQ(Steps(From(3, 6)), "not_found");
}

TEST_F(PathTest, AMissingTargetIsNamed) {
  Chain(2, {0});
  EXPECT_EQ(Steps(From(1, 3)), "not_found");
}

TEST_F(PathTest, NoWayBackWithoutRollback) {
  Chain(6, {2});
  EXPECT_EQ(Steps(From(5, 3)), "invalid_argument");
  EXPECT_NE(message_.find("rollback"), std::string::npos) << message_;
  auto request = From(5, 3);
  request.allow_rollback = true;
  EXPECT_EQ(Steps(request), "anchor 2, patch 3");
}

TEST_F(PathTest, ReplacedManifestsAreRefused) {
  Chain(6, {});
  versions_[4].sha256 = "another";
  EXPECT_EQ(Steps(From(2, 6)), "corrupt");
  EXPECT_NE(message_.find("version 5 builds on a version 4"), std::string::npos) << message_;
  EXPECT_EQ(Steps(From(4, 6)), "patch 5, patch 6") << "the bits are what counts";
  Anchor(5);
  EXPECT_EQ(Steps(From(2, 6)), "anchor 5, patch 6");
}

TEST_F(PathTest, ABaseWithAnotherDigestIsRefused) {
  Chain(6, {});
  versions_[4].manifest.digest = DigestOf(44);
  EXPECT_EQ(Steps(From(2, 6)), "corrupt");
}

TEST_F(PathTest, AnotherInventoryIsRefused) {
  Chain(6, {});
  versions_[4].manifest.inventory = "another";
  EXPECT_EQ(Steps(From(2, 6)), "mismatch");
}

TEST_F(PathTest, DamagedManifestsAreHoles) {
  Chain(6, {0});
  broken_[4] = true;
  EXPECT_EQ(Steps(From(2, 6)), "corrupt");
  EXPECT_NE(message_.find("version 4 is damaged"), std::string::npos) << message_;
  Anchor(5);
  EXPECT_EQ(Steps(From(2, 6)), "anchor 5, patch 6");
  EXPECT_EQ(Steps(From(2, 4)), "corrupt");
}

TEST_F(PathTest, WhatTurnedOutBrokenIsGoneRound) {
  Chain(6, {0, 3, 5});
  auto request = From(2, 6);
  request.broken_patches = {4};
  EXPECT_EQ(Steps(request), "anchor 5, patch 6");
  request.broken_anchors = {5};
  EXPECT_EQ(Steps(request), "not_found");
  EXPECT_NE(message_.find("objects of version 4 are missing or damaged"), std::string::npos) << message_;
  EXPECT_NE(message_.find("files of anchor 5 are missing or damaged"), std::string::npos) << message_;
  request.broken_patches = {3};
  EXPECT_EQ(Steps(request), "anchor 3, patch 4, patch 5, patch 6");
}

TEST_F(PathTest, AStoreThatFailsIsNoReasonForAnAnchor) {
  Chain(6, {0, 5});
  unreachable_ = 4;
  EXPECT_EQ(Steps(From(2, 6)), "io");
  EXPECT_EQ(Steps(From(4, 6)), "io");
}

TEST_F(PathTest, AnchorsOfOtherManifestsAreNoAnchors) {
  Chain(6, {4});
  anchors_[4].manifest = "another";
  EXPECT_EQ(Steps(From(std::nullopt, 6)), "not_found");
  EXPECT_NE(message_.find("anchor 4 belongs to a manifest"), std::string::npos) << message_;
  Chain(6, {4});
  anchors_[4].digest = DigestOf(5);
  EXPECT_EQ(Steps(From(std::nullopt, 6)), "not_found");
  Chain(6, {4});
  anchors_[4].inventory = "another";
  EXPECT_EQ(Steps(From(std::nullopt, 6)), "not_found");
}

TEST_F(PathTest, TheCheapestReadableCodingIsChosen) {
  Chain(1, {0});
  Add(2, On(1), {{"class", 5}, {"class", 5}, {"step", 9}, {"absolute", 20}});
  EXPECT_EQ(Plan(From(1, 2))->steps[0].coding, "step");
  versions_[2].manifest.parts[1].object.bytes = 1;
  EXPECT_EQ(Plan(From(1, 2))->steps[0].coding, "class");
  EXPECT_EQ(Plan(From(1, 2))->bytes, 6u);
  auto request = From(1, 2);
  request.codings = {"absolute", "open"};
  EXPECT_EQ(Plan(request)->steps[0].coding, "absolute");
  request.codings = {"open"};
  EXPECT_EQ(Steps(request), "unsupported");
  EXPECT_NE(message_.find("absolute, class, step"), std::string::npos) << message_;
  Anchor(2);
  EXPECT_EQ(Steps(request), "anchor 2");
}

TEST_F(PathTest, SizesThatOverflowAreTooDear) {
  Chain(4, {});
  versions_[2].manifest.parts[0].object.bytes = UINT64_MAX;
  versions_[3].manifest.parts[0].object.bytes = UINT64_MAX;
  EXPECT_EQ(Steps(From(1, 4)), "patch 2, patch 3, patch 4");
  Anchor(3);
  EXPECT_EQ(Steps(From(1, 4)), "anchor 3, patch 4");
}

TEST_F(PathTest, ALoopOfBasesEnds) {
  Chain(3, {});
  versions_[2].manifest.base.number = 3;
  EXPECT_EQ(Steps(From(0, 3)), "corrupt");
  Alias(3, 3).manifest.digest = DigestOf(3);
  EXPECT_EQ(Steps(From(0, 3)), "corrupt");
}

TEST_F(PathTest, AVersionWithoutPartsThatChangesBitsNeedsAnAnchor) {
  Chain(2, {0});
  Add(3, On(2), {});
  EXPECT_EQ(Steps(From(2, 3)), "not_found");
  Anchor(3);
  EXPECT_EQ(Steps(From(2, 3)), "anchor 3");
}

}  // namespace
}  // namespace deltawire::sync
