#include "pubsub/identify.h"

#include <map>

#include "delta/replica.h"
#include "pubsub/checkpoint.h"

namespace deltawire::pubsub {
namespace {

// Fills what is said about a checkpoint whose bits no version has.
Status FindNearest(sync::Catalog& catalog, const std::vector<uint64_t>& versions,
                   const format::Inventory& inventory, const std::string& inventory_hash,
                   const delta::Replica& replica, Identity& identity) {
  std::optional<std::vector<uint32_t>> fewest;
  for (auto number = versions.rbegin(); number != versions.rend(); ++number) {
    DELTAWIRE_ASSIGN(const auto record, catalog.Load(*number));
    if (!record.manifest.tensor_digests || record.manifest.inventory != inventory_hash) continue;
    DELTAWIRE_ASSIGN(const auto digests, catalog.ReadTensorDigests(record.manifest));
    std::vector<uint32_t> differing;
    for (uint32_t i = 0; i < digests.size(); ++i) {
      if (digests[i] != replica.TensorDigest(i)) differing.push_back(i);
    }
    if (fewest && fewest->size() <= differing.size()) continue;
    fewest = std::move(differing);
    identity.nearest = *number;
  }
  if (!fewest) return {};
  for (const uint32_t i : *fewest) identity.differing.push_back(inventory.tensors[i].name);
  return {};
}

}  // namespace

Result<Identity> IdentifyCheckpoint(const std::string& path, sync::Catalog& catalog,
                                    const device::Backends& backends, const Parallel& parallel) {
  DELTAWIRE_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(path));
  Identity identity;
  DELTAWIRE_ASSIGN(identity.newest, catalog.Newest());
  DELTAWIRE_ASSIGN(const auto newest, catalog.Load(identity.newest));
  identity.run = newest.manifest.run;
  DELTAWIRE_ASSIGN(const auto inventory, catalog.LoadInventory(newest.manifest.inventory));
  DELTAWIRE_TRY(format::CompareTensors(*inventory, checkpoint.Specs(), "checkpoint " + path,
                                       format::ExtraTensors::kAllow));

  std::map<std::string_view, uint32_t> index;
  for (uint32_t i = 0; i < inventory->tensors.size(); ++i) {
    index[inventory->tensors[i].name] = i;
    for (const auto& alias : inventory->tensors[i].aliases) index[alias] = i;
  }
  std::vector<delta::ReplicaTensor> tensors(inventory->tensors.size());
  for (const auto& tensor : checkpoint.tensors()) {
    const auto known = index.find(tensor.name);
    if (known == index.end()) {
      identity.unmanaged.push_back(tensor.name);
    } else {
      tensors[known->second].views.push_back(tensor.view);
    }
  }
  const delta::GridIndex grid(*inventory);
  DELTAWIRE_ASSIGN(const auto replica,
                   delta::Replica::Attach(backends, *inventory, grid, std::move(tensors), parallel));
  identity.digest = replica.digest();
  DELTAWIRE_ASSIGN(const auto versions, catalog.Versions());
  for (const uint64_t number : versions) {
    DELTAWIRE_ASSIGN(const auto record, catalog.Load(number));
    if (record.manifest.digest == identity.digest) identity.versions.push_back(number);
  }
  if (identity.versions.empty()) {
    DELTAWIRE_TRY(FindNearest(catalog, versions, *inventory, newest.manifest.inventory, replica, identity));
  }
  return identity;
}

}  // namespace deltawire::pubsub
