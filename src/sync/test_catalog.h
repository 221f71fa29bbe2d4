// A small run for tests: an inventory of two tensors, versions whose parts are plain texts.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/rng.h"
#include "store/fault/fault_store.h"
#include "store/memory/memory_store.h"
#include "sync/catalog.h"
#include "sync/catalog_writer.h"

namespace deltawire::sync {

class ManualClock final : public Clock {
 public:
  int64_t UnixNanos() override { return now_; }
  int64_t MonotonicNanos() override { return now_; }
  void SleepMillis(int64_t ms) override { now_ += ms * 1'000'000; }

 private:
  int64_t now_ = int64_t{1'700'000'000} * 1'000'000'000;
};

inline format::Inventory TestInventory(std::string_view rule = "test") {
  format::Inventory inventory;
  inventory.cast_rule = rule;
  for (const char* name : {"a.weight", "b.weight"})
    inventory.tensors.push_back(
        {.name = name, .aliases = {}, .dtype = Dtype::kBf16, .shape = {4, 8}, .grid = {}});
  return inventory;
}

// The digest that version `number` has unless a test says otherwise; never 0.
inline Digest TestDigest(uint64_t number) { return {{number * 0x9E3779B97F4A7C15u + 1, ~number}}; }

inline std::string PartText(uint64_t number) { return fmt::format("part of version {}", number); }

template <class T>
T Must(Result<T> result) {
  if (!result) {
    ADD_FAILURE() << result.error().message();
    std::abort();
  }
  return *std::move(result);
}
inline void Must(Status status) { ASSERT_TRUE(status) << status.error().message(); }

template <class T>
Code CodeOf(const Result<T>& result) {
  EXPECT_FALSE(result) << "expected an error";
  return result ? Code::kInternal : result.error().code();
}

// The last version of `writer` as a base.
inline format::BaseRef BaseOn(const VersionRecord& record) {
  return {.kind = format::BaseRef::Kind::kVersion,
          .number = record.number(),
          .manifest = record.sha256,
          .digest = record.manifest.digest};
}

// Publishes the next version: dense if it is the first, otherwise a patch on the newest. Returns the first
// error.
inline Result<VersionRecord> TryPublish(CatalogWriter& writer) {
  DELTAWIRE_ASSIGN(const auto inventory, writer.PutInventory(TestInventory()));
  DELTAWIRE_ASSIGN(const auto attempt, writer.BeginVersion(writer.next_number()));
  const auto text = PartText(attempt->number());
  const ByteSpan pieces[] = {AsBytes(text).first(4), AsBytes(text).subspan(4)};
  DELTAWIRE_ASSIGN(auto part, attempt->PutPart(pieces));
  const Digest digests[] = {TestDigest(attempt->number()), Digest()};
  format::Manifest manifest;
  DELTAWIRE_ASSIGN(manifest.tensor_digests, attempt->PutTensorDigests(digests));
  manifest.parts = {{part, writer.newest() ? "step" : "dense", {0, 4, part.sha256}}};
  manifest.inventory = inventory;
  manifest.digest = TestDigest(attempt->number());
  if (writer.newest()) manifest.base = BaseOn(*writer.newest());
  manifest.counts.total = 8;  // below the bytes of an anchor, as in life
  DELTAWIRE_TRY(attempt->Seal(std::move(manifest)));
  DELTAWIRE_TRY(attempt->Commit());
  return *writer.newest();
}

// Writes an anchor of two files for a version.
inline Status TryWriteAnchor(CatalogWriter& writer, const VersionRecord& record) {
  DELTAWIRE_ASSIGN(const auto anchor, writer.BeginAnchor(record));
  DELTAWIRE_ASSIGN(const auto file, anchor->CreateFile("model.safetensors"));
  DELTAWIRE_TRY(file->Append(AsBytes("weights of ")));
  DELTAWIRE_TRY(file->Append(AsBytes(std::to_string(record.number()))));
  DELTAWIRE_TRY(file->Commit(Condition::kOverwrite));
  DELTAWIRE_TRY(anchor->PutFile("config.json", AsBytes("{}")));
  const Digest digests[] = {record.manifest.digest, Digest()};
  DELTAWIRE_TRY(anchor->PutTensorDigests(digests));
  return anchor->Commit();
}

// One store, seen plainly by the test and through faults by the code under test.
class CatalogTest : public ::testing::Test {
 protected:
  std::unique_ptr<CatalogWriter> NewRun(std::string writer = "w1") {
    return Must(CatalogWriter::Create(faulty_, {.run = "run", .writer = std::move(writer)}, clock_, rng_));
  }
  std::unique_ptr<CatalogWriter> ResumeRun(std::string writer) {
    return Must(CatalogWriter::Resume(faulty_, {.run = "run", .writer = std::move(writer)}, clock_, rng_));
  }
  Catalog Reader() { return Catalog(plain_); }

  void Overwrite(const std::string& name, std::string_view text) {
    Must(plain_->Put(name, AsBytes(text), Condition::kOverwrite));
  }
  std::vector<std::string> Names(std::string_view prefix) {
    std::vector<std::string> names;
    for (const auto& info : Must(plain_->List(prefix))) names.push_back(info.name);
    return names;
  }
  // Every listed version loads, links to its base and has all its objects.
  void ExpectAllComplete() {
    Catalog catalog(plain_);
    for (const auto number : Must(catalog.Versions())) {
      const auto record = Must(catalog.Load(number));
      for (size_t i = 0; i < record.manifest.parts.size(); ++i)
        EXPECT_EQ(AsText(Must(catalog.ReadPart(record.manifest, i))), PartText(number));
      EXPECT_EQ(Must(catalog.ReadTensorDigests(record.manifest)).front(), TestDigest(number));
      if (record.manifest.base.kind == format::BaseRef::Kind::kVersion) {
        EXPECT_EQ(record.manifest.base.manifest, Must(catalog.Load(record.manifest.base.number)).sha256);
      }
    }
  }

  ManualClock clock_;
  SeededRng rng_{7};
  std::shared_ptr<MemoryStore> plain_ = std::make_shared<MemoryStore>(clock_);
  std::shared_ptr<FaultStore> faulty_ = std::make_shared<FaultStore>(plain_, clock_);
};

}  // namespace deltawire::sync
