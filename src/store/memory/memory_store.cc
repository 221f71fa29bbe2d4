#include "store/memory/memory_store.h"

#include "store/checks.h"

namespace deltawire {
namespace {

class MemoryWriter final : public ObjectWriter {
 public:
  MemoryWriter(Store& store, std::string name) : store_(&store), name_(std::move(name)) {}

  Status Append(ByteSpan bytes) override {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return {};
  }
  Status Commit(Condition condition) override { return store_->Put(name_, bytes_, condition); }

 private:
  Store* store_;
  std::string name_;
  Bytes bytes_;
};

}  // namespace

StoreCapabilities MemoryStore::capabilities() const {
  return {.create_if_absent = options_.create_if_absent, .modification_times = options_.modification_times};
}

Result<MemoryStore::Object> MemoryStore::Find(std::string_view name) const {
  DELTAWIRE_TRY(CheckObjectName(name));
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(name);
  if (found == objects_.end())
    return Fail(Code::kNotFound, "object {} does not exist in {}", name, Describe());
  return found->second;
}

Result<Bytes> MemoryStore::Get(std::string_view name, uint64_t max_bytes) {
  DELTAWIRE_ASSIGN(const auto object, Find(name));
  DELTAWIRE_TRY(CheckObjectSize(name, object.bytes->size(), max_bytes));
  return *object.bytes;
}

Result<Bytes> MemoryStore::GetRange(std::string_view name, uint64_t offset, uint64_t length) {
  DELTAWIRE_ASSIGN(const auto object, Find(name));
  DELTAWIRE_TRY(CheckObjectRange(name, object.bytes->size(), offset, length));
  const auto begin = object.bytes->begin() + static_cast<ptrdiff_t>(offset);
  return Bytes(begin, begin + static_cast<ptrdiff_t>(length));
}

Result<ObjectInfo> MemoryStore::Stat(std::string_view name) {
  DELTAWIRE_ASSIGN(const auto object, Find(name));
  return ObjectInfo{std::string(name), object.bytes->size(), object.modified_unix_nanos};
}

Status MemoryStore::Put(std::string_view name, ByteSpan bytes, Condition condition) {
  DELTAWIRE_TRY(CheckObjectName(name));
  if (condition == Condition::kIfAbsent && !options_.create_if_absent)
    return Fail(Code::kUnsupported, "object {}: {} can't create an object only if it is absent", name,
                Describe());
  Object object{std::make_shared<const Bytes>(bytes.begin(), bytes.end()),
                options_.modification_times ? clock_->UnixNanos() : 0};
  const std::lock_guard lock(mutex_);
  if (condition == Condition::kIfAbsent) {
    if (!objects_.try_emplace(std::string(name), std::move(object)).second)
      return Fail(Code::kExists, "object {} already exists in {}", name, Describe());
  } else {
    objects_.insert_or_assign(std::string(name), std::move(object));
  }
  return {};
}

Result<std::unique_ptr<ObjectWriter>> MemoryStore::Create(std::string_view name) {
  DELTAWIRE_TRY(CheckObjectName(name));
  return std::make_unique<MemoryWriter>(*this, std::string(name));
}

Result<std::vector<ObjectInfo>> MemoryStore::List(std::string_view prefix) {
  std::vector<ObjectInfo> infos;
  const std::lock_guard lock(mutex_);
  for (auto at = objects_.lower_bound(prefix); at != objects_.end() && at->first.starts_with(prefix); ++at)
    infos.push_back({at->first, at->second.bytes->size(), at->second.modified_unix_nanos});
  return infos;
}

Status MemoryStore::Delete(std::string_view name) {
  DELTAWIRE_TRY(CheckObjectName(name));
  const std::lock_guard lock(mutex_);
  if (const auto found = objects_.find(name); found != objects_.end()) objects_.erase(found);
  return {};
}

Result<uint64_t> MemoryStore::CleanTemporary(int64_t) { return 0; }

}  // namespace deltawire
