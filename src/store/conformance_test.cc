#include "store/conformance.h"

#include "store/fault/fault_store.h"
#include "store/file/file_store.h"
#include "store/memory/memory_store.h"
#include "store/test_folder.h"

namespace deltawire {
namespace {

std::shared_ptr<Store> MakeFileStore() {
  struct Owned {
    TestFolder folder;
    std::unique_ptr<FileStore> store;
  };
  auto owned = std::make_shared<Owned>();
  owned->store = *FileStore::Open(owned->folder.path() + "/made/by/open", /*create=*/true);
  return {owned, owned->store.get()};
}

const bool kRegistered =
    RegisterStoreConformance({"MemoryStore", [] { return std::make_shared<MemoryStore>(); }}) &&
    RegisterStoreConformance(
        {"MemoryStoreWithoutCapabilities",
         [] {
           return std::make_shared<MemoryStore>(
               SystemClock(), MemoryStore::Options{.create_if_absent = false, .modification_times = false});
         }}) &&
    RegisterStoreConformance({"FileStore", MakeFileStore}) &&
    RegisterStoreConformance(
        {"FaultStoreWithoutFaults",
         [] { return std::make_shared<FaultStore>(std::make_shared<MemoryStore>()); }}) &&
    RegisterStoreConformance(
        {"FaultStoreOnFiles", [] { return std::make_shared<FaultStore>(MakeFileStore()); }});

}  // namespace
}  // namespace deltawire
