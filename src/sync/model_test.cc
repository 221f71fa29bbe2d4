// Random publishing, dying, losing, deleting and reading against a simple model. The seed is printed; set
// kSeed to repeat a run.
#include <map>
#include <random>
#include <set>

#include "sync/test_catalog.h"

namespace deltawire::sync {
namespace {

constexpr uint64_t kSeed = 0;  // 0: another one each time

class ModelTest : public CatalogTest {
 protected:
  ModelTest() : seed_(kSeed != 0 ? kSeed : std::random_device{}()), random_(seed_) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
  }

  uint64_t Below(uint64_t bound) { return random_.Next() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  void AddFaults() {
    if (!OneIn(3)) return;
    const bool dies = OneIn(3);
    faulty_->Add({.kind = OneIn(2) ? FaultKind::kFail : FaultKind::kLoseAnswer,
                  .nth = Below(12),
                  .times = dies ? kForever : 1 + Below(2),
                  .code = OneIn(4) ? Code::kNoSpace : Code::kIo});
  }

  void Restart() {
    writer_.reset();
    faulty_->ClearFaults();
    const auto id = fmt::format("w{}", ++writers_);
    writer_ = Must(Reader().Versions()).empty() ? NewRun(id) : ResumeRun(id);
  }

  void Publish() {
    AddFaults();
    if (writer_->unsettled()) {
      const auto settled = writer_->Settle();
      if (settled) Believe(**settled);
    }
    if (!writer_->unsettled()) {
      const auto record = TryPublish(*writer_);
      if (record)
        Believe(*record);
      else
        ASSERT_NE(record.error().code(), Code::kFenced) << record.error().message();
    }
    if (OneIn(5)) return Restart();
    faulty_->ClearFaults();
  }

  // A version that the writer called published exists from then on, the same for ever.
  void Believe(const VersionRecord& record) {
    const auto [at, is_new] = published_.emplace(record.number(), record);
    EXPECT_TRUE(is_new) << "version " << record.number() << " published twice";
    EXPECT_EQ(Must(Reader().Load(record.number())), record);
  }

  void WriteAnchor() {
    const auto versions = Must(Reader().Versions());
    if (versions.empty()) return;
    const auto record = Reader().Load(versions[Below(versions.size())]);
    if (!record) return;
    AddFaults();
    (void)TryWriteAnchor(*writer_, *record);
    faulty_->ClearFaults();
  }

  // Somebody deletes a file, or spoils a hint.
  void Vandalise() {
    static constexpr std::string_view kFolders[] = {"manifests/", "anchors/", "updates/"};
    const auto names = Names(kFolders[Below(3)]);
    // The newest manifest stays: the writer stands on it, and on an empty run it would start again.
    if (!names.empty()) {
      const auto& name = names[Below(names.size())];
      if (name == names.back()) return;
      Must(plain_->Delete(name));
      if (const auto number = format::NumberFromManifestName(name)) deleted_.insert(*number);
      spoiled_.insert(name);
    }
    if (OneIn(3)) Overwrite("LATEST", OneIn(2) ? "garbage" : std::to_string(Below(50)));
  }

  // nullopt when one of the objects can't be read.
  std::optional<uint64_t> ReadableBytes(const format::Manifest& manifest) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < manifest.parts.size(); ++i) {
      const auto part = Reader().ReadPart(manifest, i);
      if (!part) return std::nullopt;
      bytes += part->size();
    }
    return bytes;
  }
  std::optional<uint64_t> ReadableBytes(const format::AnchorManifest& anchor) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < anchor.files.size(); ++i) {
      const auto read = Reader().ReadAnchorFile(anchor, i, [&](ByteSpan piece) -> Status {
        bytes += piece.size();
        return {};
      });
      if (!read) return std::nullopt;
    }
    return bytes;
  }

  // Fewest bytes to version `number` for a receiver with digest `held`; nullopt: unreachable. Written from
  // the definition: recursive, no cut-offs.
  std::optional<uint64_t> Cheapest(uint64_t number, std::optional<Digest> held) {
    const auto record = Reader().Load(number);
    if (!record) return std::nullopt;
    const auto& manifest = record->manifest;
    if (held == manifest.digest) return 0;
    std::optional<uint64_t> best;
    const auto offer = [&](std::optional<uint64_t> bytes) {
      if (bytes && (!best || *bytes < *best)) best = bytes;
    };
    if (const auto anchor = Reader().LoadAnchor(number); anchor && anchor->manifest == record->sha256)
      offer(ReadableBytes(*anchor));
    const auto patch = ReadableBytes(manifest);
    if (!patch) return best;
    if (manifest.base.kind == format::BaseRef::Kind::kNone || held == manifest.base.digest) {
      offer(patch);
    } else if (const auto before = Cheapest(manifest.base.number, held)) {
      offer(*patch + *before);
    }
    return best;
  }

  // Follows a path as a receiver would; the step that can't be read is entered into the request.
  bool Follow(const Path& path, std::optional<Digest> state, PathRequest& request) {
    uint64_t bytes = 0;
    for (const auto& step : path.steps) {
      const auto& manifest = step.record.manifest;
      const bool is_anchor = step.kind == Step::Kind::kAnchor;
      const auto read = is_anchor ? ReadableBytes(*step.anchor) : ReadableBytes(manifest);
      if (!read) {
        (is_anchor ? request.broken_anchors : request.broken_patches).push_back(manifest.number);
        return false;
      }
      if (!is_anchor && manifest.base.kind != format::BaseRef::Kind::kNone) {
        EXPECT_EQ(state, manifest.base.digest);
      }
      bytes += *read;
      state = manifest.digest;
    }
    EXPECT_EQ(state, TestDigest(path.target.number()));
    EXPECT_EQ(bytes, path.bytes);
    return true;
  }

  // Reaches a random version exactly when the model can, and as cheaply.
  void Read() {
    const auto versions = Must(Reader().Versions());
    if (versions.empty()) return;
    PathRequest request;
    request.target = versions[Below(versions.size())];
    if (!OneIn(3)) request.position.digest = TestDigest(Below(versions.back() + 1));
    const auto cheapest = Cheapest(request.target, request.position.digest);
    for (;;) {
      const auto path = Reader().Plan(request);
      ASSERT_TRUE(path || !cheapest) << "target " << request.target << ": " << path.error().message();
      if (!path) return;
      if (!Follow(*path, request.position.digest, request)) continue;
      ASSERT_TRUE(cheapest) << "target " << request.target;
      if (request.position.digest) {
        EXPECT_EQ(path->bytes, *cheapest) << "target " << request.target;
      }
      return;
    }
  }

  void CheckInvariants() {
    const auto versions = Must(Reader().Versions());
    const std::set<uint64_t> listed(versions.begin(), versions.end());
    for (const auto& [number, record] : published_)
      EXPECT_EQ(listed.contains(number), !deleted_.contains(number)) << "version " << number;
    for (const auto number : versions) {
      auto catalog = Reader();
      const auto manifest = Must(catalog.Load(number)).manifest;
      ASSERT_EQ(manifest.parts.size(), 1u);
      if (!spoiled_.contains(manifest.parts[0].object.name)) {
        EXPECT_EQ(AsText(Must(catalog.ReadPart(manifest, 0))), PartText(number));
      }
      if (!spoiled_.contains(manifest.tensor_digests->name)) {
        EXPECT_EQ(Must(catalog.ReadTensorDigests(manifest)).front(), TestDigest(number));
      }
    }
    if (versions.empty()) return;
    EXPECT_EQ(Must(Reader().Newest()), versions.back());
    // Without a hole above the hint, or the version held, a receiver sees the same.
    const auto held = versions[Below(versions.size())];
    const auto seen = Must(Reader().NewestFrom(held));
    EXPECT_TRUE(listed.contains(seen)) << seen;
    EXPECT_GE(seen, held);
    EXPECT_TRUE(seen == versions.back() || deleted_.contains(seen + 1)) << seen << " from " << held;
  }

  uint64_t seed_;
  SeededRng random_{seed_};
  std::unique_ptr<CatalogWriter> writer_;
  int writers_ = 0;
  std::map<uint64_t, VersionRecord> published_;
  std::set<uint64_t> deleted_;     // versions
  std::set<std::string> spoiled_;  // objects
};

TEST_F(ModelTest, RandomOperations) {
  for (int round = 0; round < 12 && !HasFailure(); ++round) {
    plain_ = std::make_shared<MemoryStore>(clock_);
    faulty_ = std::make_shared<FaultStore>(plain_, clock_);
    published_.clear();
    deleted_.clear();
    spoiled_.clear();
    Restart();
    for (int step = 0; step < 60 && !HasFailure(); ++step) {
      clock_.SleepMillis(60'000);
      switch (Below(10)) {
        case 0: WriteAnchor(); break;
        case 1: Vandalise(); break;
        case 2: Must(writer_->CollectGarbage(600'000)); break;
        case 3:
        case 4:
        case 5: Read(); break;
        default: Publish();
      }
      CheckInvariants();
    }
  }
}

}  // namespace
}  // namespace deltawire::sync
