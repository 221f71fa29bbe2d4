#include "store/probe.h"

#include <algorithm>
#include <functional>

namespace deltawire {

std::vector<ProbeStep> ProbeStore(Store& store, Rng& rng) {
  const std::string name = "probe-" + rng.HexId(16);
  const std::string text = "deltawire doctor --probe";
  const bool exclusive = store.capabilities().create_if_absent;
  const auto condition = exclusive ? Condition::kIfAbsent : Condition::kOverwrite;
  bool created = false;
  const std::pair<const char*, std::function<Status()>> steps[] = {
      {"create",
       [&]() -> Status {
         DELTAWIRE_TRY(store.Put(name, AsBytes(text), condition));
         created = true;
         return {};
       }},
      {"create again",
       [&]() -> Status {
         const Status again = store.Put(name, AsBytes("other"), Condition::kIfAbsent);
         const Code expected = exclusive ? Code::kExists : Code::kUnsupported;
         if (!again && again.error().code() == expected) return {};
         return Fail(Code::kInternal, "creating {} a second time gave {}, expected {}", name,
                     again ? "success" : CodeName(again.error().code()), CodeName(expected));
       }},
      {"read",
       [&]() -> Status {
         DELTAWIRE_ASSIGN(const Bytes bytes, store.Get(name, 4096));
         if (AsText(bytes) == text) return {};
         return Fail(Code::kCorrupt, "{} holds {} bytes, not the {} that were written", name, bytes.size(),
                     text.size());
       }},
      {"list",
       [&]() -> Status {
         DELTAWIRE_ASSIGN(const auto infos, store.List(name));
         if (infos.size() == 1 && infos[0].size_bytes == text.size()) return {};
         return Fail(Code::kIo, "listing {} gave {} objects, expected 1 of {} bytes", name, infos.size(),
                     text.size());
       }},
      {"delete", [&] { return store.Delete(name); }},
  };
  std::vector<ProbeStep> done;
  for (const auto& [what, run] : steps) {
    done.push_back({what, run()});
    if (!done.back().result) break;
  }
  if (created && done.back().what != "delete") (void)store.Delete(name);  // best effort after a failed step
  return done;
}

}  // namespace deltawire
