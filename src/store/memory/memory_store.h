// A store in this process's memory: for tests, and for publishers and subscribers of one process.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "store/store.h"

namespace deltawire {

class MemoryStore final : public Store {
 public:
  // What to claim; tests of callers that need a capability take it away.
  struct Options {
    bool create_if_absent = true;
    bool modification_times = true;
  };

  // `clock` stamps objects and must outlive the store.
  explicit MemoryStore(Clock& clock = SystemClock()) : MemoryStore(clock, Options()) {}
  MemoryStore(Clock& clock, Options options) : clock_(&clock), options_(options) {}

  std::string Describe() const override { return "memory store"; }
  StoreCapabilities capabilities() const override;
  Result<Bytes> Get(std::string_view name, uint64_t max_bytes) override;
  Result<Bytes> GetRange(std::string_view name, uint64_t offset, uint64_t length) override;
  Result<ObjectInfo> Stat(std::string_view name) override;
  Status Put(std::string_view name, ByteSpan bytes, Condition condition) override;
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override;
  Result<std::vector<ObjectInfo>> List(std::string_view prefix) override;
  Status Delete(std::string_view name) override;
  Result<uint64_t> CleanTemporary(int64_t min_age_ms) override;

 private:
  // shared_ptr: a reader copies outside the lock while a writer may replace or delete the object.
  struct Object {
    std::shared_ptr<const Bytes> bytes;
    int64_t modified_unix_nanos = 0;
  };

  Result<Object> Find(std::string_view name) const;

  Clock* clock_;
  Options options_;
  mutable std::mutex mutex_;
  std::map<std::string, Object, std::less<>> objects_;
};

}  // namespace deltawire
