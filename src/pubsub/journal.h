// The redo journal of a checkpoint folder: every bit of a commit, complete and hashed before the first write.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "pubsub/subscriber.h"

namespace deltawire::pubsub {

struct JournalHeader {
  std::string run;
  uint64_t number = 0;
  Digest digest;
};

// One block of a journal. names: the tensor under its canonical name and every alias.
struct JournalBlock {
  std::vector<std::string> names;
  Box box;
  bool dense = false;
  std::vector<uint32_t> positions;  // empty when dense
  Bytes bits;
};

// Written durably: after a crash there is no journal or a complete one.
Status WriteJournal(const std::string& path, const CommitObserver::Write& write);

// Reads a journal and calls `apply` for each block. nullopt when there is none. kCorrupt when its hash is
// wrong (it was then never complete: nothing had been written to the checkpoint); nothing is applied in that
// case.
Result<std::optional<JournalHeader>> ReadJournal(const std::string& path,
                                                 const std::function<Status(const JournalBlock&)>& apply);

}  // namespace deltawire::pubsub
