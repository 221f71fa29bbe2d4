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

  // Somebody deletes, or spoils a hint.
  void Vandalise() {
    const auto names = Names(OneIn(2) ? "manifests/" : "anchors/");
    if (!names.empty() && OneIn(2)) {
      // The newest stays: the writer stands on it, and on an empty run it would start again.
      const auto& name = names[Below(names.size())];
      if (name != names.back()) {
        Must(plain_->Delete(name));
        if (const auto number = format::NumberFromManifestName(name)) deleted_.insert(*number);
      }
    }
    if (OneIn(3)) Overwrite("LATEST", OneIn(2) ? "garbage" : std::to_string(Below(50)));
  }

  // Fewest bytes to version `number` for a receiver with digest `held`; nullopt: unreachable. Written from the
  // definition: recursive, no cut-offs.
  std::optional<uint64_t> Cheapest(uint64_t number, std::optional<Digest> held) {
    const auto record = Reader().Load(number);
    if (!record) return std::nullopt;
    const auto& manifest = record->manifest;
    if (held == manifest.digest) return 0;
    std::optional<uint64_t> best;
    const auto offer = [&](std::optional<uint64_t> bytes) {
      if (bytes && (!best || *bytes < *best)) best = bytes;
    };
    if (const auto anchor = Reader().LoadAnchor(number); anchor && anchor->manifest == record->sha256) {
      uint64_t bytes = 0;
      for (const auto& file : anchor->files) bytes += file.bytes;
      offer(bytes);
    }
    uint64_t part_bytes = 0;
    for (const auto& part : manifest.parts) part_bytes += part.object.bytes;
    if (manifest.base.kind == format::BaseRef::Kind::kNone) {
      offer(part_bytes);
    } else if (held == manifest.base.digest) {
      offer(part_bytes);
    } else if (const auto before = Cheapest(manifest.base.number, held)) {
      offer(part_bytes + *before);
    }
    return best;
  }

  // Follows the steps as a receiver would, and compares with the model.
  void Read() {
    const auto versions = Must(Reader().Versions());
    if (versions.empty()) return;
    const auto target = versions[Below(versions.size())];
    const auto numbers = versions.back() + 1;
    std::optional<Digest> held;
    if (!OneIn(3)) held = TestDigest(Below(numbers));
    auto catalog = Reader();
    const auto path = catalog.Plan({.position = {.version = {}, .digest = held}, .target = target, .codings = {}});
    const auto cheapest = Cheapest(target, held);
    ASSERT_EQ(path.has_value(), cheapest.has_value())
        << "target " << target << ": " << (path ? "path found" : path.error().message());
    if (!path) return;
    if (held) {
      EXPECT_EQ(path->bytes, *cheapest) << "target " << target;
    }
    auto state = held;
    uint64_t bytes = 0;
    for (const auto& step : path->steps) {
      if (step.kind == Step::Kind::kAnchor) {
        for (size_t i = 0; i < step.anchor->files.size(); ++i) {
          Must(catalog.ReadAnchorFile(*step.anchor, i, [&](ByteSpan piece) -> Status {
            bytes += piece.size();
            return {};
          }));
        }
      } else {
        const auto& manifest = step.record.manifest;
        if (manifest.base.kind != format::BaseRef::Kind::kNone) {
          EXPECT_EQ(state, manifest.base.digest);
        }
        for (size_t i = 0; i < manifest.parts.size(); ++i) bytes += Must(catalog.ReadPart(manifest, i)).size();
      }
      state = step.record.manifest.digest;
    }
    EXPECT_EQ(state, TestDigest(target));
    EXPECT_EQ(bytes, path->bytes);
  }

  void CheckInvariants() {
    const auto versions = Must(Reader().Versions());
    const std::set<uint64_t> listed(versions.begin(), versions.end());
    for (const auto& [number, record] : published_)
      EXPECT_EQ(listed.contains(number), !deleted_.contains(number)) << "version " << number;
    for (const auto number : versions) {
      auto catalog = Reader();
      const auto record = Must(catalog.Load(number));
      for (size_t i = 0; i < record.manifest.parts.size(); ++i)
        EXPECT_EQ(AsText(Must(catalog.ReadPart(record.manifest, i))), PartText(number));
      EXPECT_EQ(Must(catalog.ReadTensorDigests(record.manifest)).front(), TestDigest(number));
    }
    if (!versions.empty()) {
      EXPECT_EQ(Must(Reader().Newest()), versions.back());
    }
  }

  uint64_t seed_;
  SeededRng random_{seed_};
  std::unique_ptr<CatalogWriter> writer_;
  int writers_ = 0;
  std::map<uint64_t, VersionRecord> published_;
  std::set<uint64_t> deleted_;
};

TEST_F(ModelTest, RandomOperations) {
  for (int round = 0; round < 30 && !HasFailure(); ++round) {
    plain_ = std::make_shared<MemoryStore>(clock_);
    faulty_ = std::make_shared<FaultStore>(plain_, clock_);
    published_.clear();
    deleted_.clear();
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
