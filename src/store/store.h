// Immutable named objects: what a catalog needs from a folder, an object store or a test.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace deltawire {

// What an implementation can do, as data. A missing capability is answered with kUnsupported when it is asked
// for, never with something weaker.
struct StoreCapabilities {
  // Condition::kIfAbsent is atomic among all writers of the store.
  bool create_if_absent = false;
  // ObjectInfo::modified_unix_nanos is filled in.
  bool modification_times = false;
};

enum class Condition : uint8_t {
  kOverwrite,  // replaces what is there, atomically: readers see the old or the new object
  kIfAbsent,   // kExists, and nothing changed, when an object of that name is there
};

struct ObjectInfo {
  std::string name;
  uint64_t size_bytes = 0;
  int64_t modified_unix_nanos = 0;  // by the store's clock; 0 without StoreCapabilities::modification_times

  friend bool operator==(const ObjectInfo&, const ObjectInfo&) = default;
};

// An object being written. Nothing is visible under its name before Commit succeeds; destroying it without
// Commit leaves no object. One thread.
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;
  // After an error the writer can only be destroyed.
  virtual Status Append(ByteSpan bytes) = 0;
  // Durable and visible on success. May be called once. After kIo the object may exist or not (a lost
  // answer): read it back.
  virtual Status Commit(Condition condition) = 0;
};

// Objects are read and written whole (or by range) under names that IsSafeObjectName accepts; other names are
// kInvalidArgument. Thread-safe; several processes may use one store. Errors: kNotFound when there is no such
// object (or no such root), kNoSpace when the disk or quota is full, kIo for the rest of what the system or
// network reports; each names the object. After kIo from a call that writes, the write may have happened.
class Store {
 public:
  virtual ~Store() = default;

  // For messages: "file store /data/run7".
  virtual std::string Describe() const = 0;
  virtual StoreCapabilities capabilities() const = 0;

  // The whole object. One larger than max_bytes is kCorrupt, before anything is allocated for it.
  virtual Result<Bytes> Get(std::string_view name, uint64_t max_bytes) = 0;
  // Exactly `length` bytes from `offset`; an object that ends earlier is kCorrupt, with its size.
  virtual Result<Bytes> GetRange(std::string_view name, uint64_t offset, uint64_t length) = 0;
  virtual Result<ObjectInfo> Stat(std::string_view name) = 0;

  // Durable when it returns.
  virtual Status Put(std::string_view name, ByteSpan bytes, Condition condition) = 0;
  // Starts an object of unknown size. The writer may outlive neither the store nor, usefully, the process.
  virtual Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) = 0;

  // All objects whose names start with `prefix` (plain text, "" = all), sorted by name. Names that are not
  // safe object names (strangers in a folder) and unfinished writes are not listed.
  virtual Result<std::vector<ObjectInfo>> List(std::string_view prefix) = 0;
  // Succeeds when the object is gone, also when it was never there. Readers that hold it open or mapped keep
  // it.
  virtual Status Delete(std::string_view name) = 0;

  // Removes what writers that died left behind, if it is older than min_age_ms by the store's clock; returns
  // how many. Objects are not touched. Choose min_age_ms above the longest upload.
  virtual Result<uint64_t> CleanTemporary(int64_t min_age_ms) = 0;
};

}  // namespace deltawire
