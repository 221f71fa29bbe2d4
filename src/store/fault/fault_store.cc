#include "store/fault/fault_store.h"

#include <algorithm>

namespace deltawire {
namespace {

Error Scripted(const Fault& fault, StoreOperation operation, std::string_view name) {
  return Error(fault.code, fmt::format("{} {}: {} by script", StoreOperationName(operation), name,
                                       fault.kind == FaultKind::kLoseAnswer ? "answer lost" : "failed"));
}

// Runs `operation` with the fault applied to its answer; kTruncate is the caller's.
template <class Call>
auto WithFault(const std::optional<Fault>& fault, StoreOperation operation, std::string_view name,
               const Call& call) -> decltype(call()) {
  if (fault && fault->kind == FaultKind::kFail) return Fail(Scripted(*fault, operation, name));
  auto answer = call();
  if (fault && fault->kind == FaultKind::kLoseAnswer) return Fail(Scripted(*fault, operation, name));
  return answer;
}

uint64_t KeptBytes(const std::optional<Fault>& fault, uint64_t size) {
  return fault && fault->kind == FaultKind::kTruncate ? std::min(size, fault->keep_bytes) : size;
}

}  // namespace

std::string_view StoreOperationName(StoreOperation operation) {
  switch (operation) {
    case StoreOperation::kGet: return "get";
    case StoreOperation::kGetRange: return "get range";
    case StoreOperation::kStat: return "stat";
    case StoreOperation::kPut: return "put";
    case StoreOperation::kCreate: return "create";
    case StoreOperation::kAppend: return "append";
    case StoreOperation::kCommit: return "commit";
    case StoreOperation::kList: return "list";
    case StoreOperation::kDelete: return "delete";
    case StoreOperation::kCleanTemporary: return "clean temporary";
  }
  return "?";
}

class FaultWriter final : public ObjectWriter {
 public:
  FaultWriter(FaultStore& store, std::string name, std::unique_ptr<ObjectWriter> inner)
      : store_(&store), name_(std::move(name)), inner_(std::move(inner)) {}

  Status Append(ByteSpan bytes) override {
    const auto fault = store_->Enter(StoreOperation::kAppend, name_);
    return WithFault(fault, StoreOperation::kAppend, name_,
                     [&] { return inner_->Append(bytes.first(KeptBytes(fault, bytes.size()))); });
  }
  Status Commit(Condition condition) override {
    const auto fault = store_->Enter(StoreOperation::kCommit, name_);
    return WithFault(fault, StoreOperation::kCommit, name_, [&] { return inner_->Commit(condition); });
  }

 private:
  FaultStore* store_;
  std::string name_;
  std::unique_ptr<ObjectWriter> inner_;
};

void FaultStore::Add(Fault fault) {
  const std::lock_guard lock(mutex_);
  script_.push_back({std::move(fault), 0});
}

void FaultStore::ClearFaults() {
  const std::lock_guard lock(mutex_);
  script_.clear();
}

std::vector<StoreCall> FaultStore::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void FaultStore::ClearCalls() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
}

std::optional<Fault> FaultStore::Enter(StoreOperation operation, std::string_view name) {
  StoreCall call{operation, std::string(name)};
  if (hook_) hook_(call);
  std::optional<Fault> hit;
  int64_t delay_ms = 0;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [fault, seen] : script_) {
      if (fault.on && *fault.on != operation) continue;
      if (call.name.find(fault.name_contains) == std::string::npos) continue;
      const auto index = seen++;
      if (index < fault.nth || index - fault.nth >= fault.times) continue;
      if (fault.kind == FaultKind::kDelay)
        delay_ms += fault.delay_ms;
      else if (!hit)
        hit = fault;
    }
    calls_.push_back(std::move(call));
  }
  if (delay_ms > 0) clock_->SleepMillis(delay_ms);
  return hit;
}

Result<Bytes> FaultStore::Get(std::string_view name, uint64_t max_bytes) {
  const auto fault = Enter(StoreOperation::kGet, name);
  auto bytes = WithFault(fault, StoreOperation::kGet, name, [&] { return inner_->Get(name, max_bytes); });
  if (bytes) bytes->resize(KeptBytes(fault, bytes->size()));
  return bytes;
}

Result<Bytes> FaultStore::GetRange(std::string_view name, uint64_t offset, uint64_t length) {
  const auto fault = Enter(StoreOperation::kGetRange, name);
  return WithFault(fault, StoreOperation::kGetRange, name, [&]() -> Result<Bytes> {
    DELTAWIRE_ASSIGN(auto bytes, inner_->GetRange(name, offset, length));
    // What a store does when its connection is cut short: it notices, and says so.
    if (const auto kept = KeptBytes(fault, length); kept < length)
      return Fail(Code::kCorrupt, "get range {}: {} of {} bytes arrived", name, kept, length);
    return bytes;
  });
}

Result<ObjectInfo> FaultStore::Stat(std::string_view name) {
  const auto fault = Enter(StoreOperation::kStat, name);
  return WithFault(fault, StoreOperation::kStat, name, [&] { return inner_->Stat(name); });
}

Status FaultStore::Put(std::string_view name, ByteSpan bytes, Condition condition) {
  const auto fault = Enter(StoreOperation::kPut, name);
  return WithFault(fault, StoreOperation::kPut, name,
                   [&] { return inner_->Put(name, bytes.first(KeptBytes(fault, bytes.size())), condition); });
}

Result<std::unique_ptr<ObjectWriter>> FaultStore::Create(std::string_view name) {
  const auto fault = Enter(StoreOperation::kCreate, name);
  return WithFault(fault, StoreOperation::kCreate, name, [&]() -> Result<std::unique_ptr<ObjectWriter>> {
    DELTAWIRE_ASSIGN(auto inner, inner_->Create(name));
    return std::make_unique<FaultWriter>(*this, std::string(name), std::move(inner));
  });
}

Result<std::vector<ObjectInfo>> FaultStore::List(std::string_view prefix) {
  const auto fault = Enter(StoreOperation::kList, prefix);
  return WithFault(fault, StoreOperation::kList, prefix, [&] { return inner_->List(prefix); });
}

Status FaultStore::Delete(std::string_view name) {
  const auto fault = Enter(StoreOperation::kDelete, name);
  return WithFault(fault, StoreOperation::kDelete, name, [&] { return inner_->Delete(name); });
}

Result<uint64_t> FaultStore::CleanTemporary(int64_t min_age_ms) {
  const auto fault = Enter(StoreOperation::kCleanTemporary, "");
  return WithFault(fault, StoreOperation::kCleanTemporary, "",
                   [&] { return inner_->CleanTemporary(min_age_ms); });
}

}  // namespace deltawire
