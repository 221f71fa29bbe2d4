// A store that misbehaves on purpose, at calls that a script names. For tests and rehearsals.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/store.h"

namespace deltawire {

enum class StoreOperation : uint8_t {
  kGet,
  kGetRange,
  kStat,
  kPut,
  kCreate,
  kAppend,
  kCommit,
  kList,
  kDelete,
  kCleanTemporary,
};
std::string_view StoreOperationName(StoreOperation operation);

enum class FaultKind : uint8_t {
  kFail,        // the operation does not happen and answers with `code`
  kLoseAnswer,  // the operation happens and answers with `code` all the same
  kTruncate,  // only the first keep_bytes are read or written, and the answer is success; Get, GetRange, Put,
              // Append
  kDelay,     // delay_ms on the clock, then as usual
};

// Happens at the calls [nth, nth + times) among those that `on` and `name_contains` select, counted from 0
// since the fault was added.
struct Fault {
  FaultKind kind = FaultKind::kFail;
  std::optional<StoreOperation> on = std::nullopt;  // nullopt: any operation
  std::string name_contains = {};                   // "": any object
  uint64_t nth = 0;
  uint64_t times = 1;  // kForever: a store that is gone, or a process that died
  Code code = Code::kIo;
  uint64_t keep_bytes = 0;
  int64_t delay_ms = 0;
};
inline constexpr uint64_t kForever = UINT64_MAX;

struct StoreCall {
  StoreOperation operation = StoreOperation::kGet;
  std::string name;  // the prefix for kList

  friend bool operator==(const StoreCall&, const StoreCall&) = default;
};

// Passes calls on to another store, which must outlive it together with the clock. Deterministic: faults
// depend on the order of calls only. Thread-safe; a writer from Create belongs to one thread and not longer
// than this.
class FaultStore final : public Store {
 public:
  explicit FaultStore(std::shared_ptr<Store> inner, Clock& clock = SystemClock())
      : inner_(std::move(inner)), clock_(&clock) {}

  // When several faults hit one call, the one added first happens.
  void Add(Fault fault);
  // Drops all faults; calls() is kept.
  void ClearFaults();
  // Every call so far, in order.
  std::vector<StoreCall> calls() const;
  void ClearCalls();
  // Called before each operation, with no lock held: a test may act as somebody else there, in the middle of
  // the caller's work. Set it before the store is shared.
  void BeforeEach(std::function<void(const StoreCall&)> hook) { hook_ = std::move(hook); }

  std::string Describe() const override { return inner_->Describe(); }
  StoreCapabilities capabilities() const override { return inner_->capabilities(); }
  Result<Bytes> Get(std::string_view name, uint64_t max_bytes) override;
  Result<Bytes> GetRange(std::string_view name, uint64_t offset, uint64_t length) override;
  Result<ObjectInfo> Stat(std::string_view name) override;
  Status Put(std::string_view name, ByteSpan bytes, Condition condition) override;
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override;
  Result<std::vector<ObjectInfo>> List(std::string_view prefix) override;
  Status Delete(std::string_view name) override;
  Result<uint64_t> CleanTemporary(int64_t min_age_ms) override;

 private:
  friend class FaultWriter;

  struct Scripted {
    Fault fault;
    uint64_t seen = 0;
  };

  // Records the call, delays it if so scripted, and returns the fault that it must suffer otherwise.
  std::optional<Fault> Enter(StoreOperation operation, std::string_view name);

  // shared_ptr: the decorated store is usually looked at by the test as well.
  std::shared_ptr<Store> inner_;
  Clock* clock_;
  std::function<void(const StoreCall&)> hook_;
  mutable std::mutex mutex_;
  std::vector<Scripted> script_;
  std::vector<StoreCall> calls_;
};

}  // namespace deltawire
