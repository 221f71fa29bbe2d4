// The trainer's side: watches live tensors, detects what changed, and publishes versions to a store.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "codec/codec.h"
#include "delta/encode.h"
#include "delta/grid_index.h"
#include "detect/model_watch.h"
#include "device/backends.h"
#include "pubsub/checkpoint.h"
#include "pubsub/version.h"
#include "store/store.h"
#include "sync/catalog_writer.h"

namespace deltawire::pubsub {

struct PublishedTensor {
  std::string name;                  // canonical
  std::vector<std::string> aliases;  // other names of the same storage
  TensorView live;
  Dtype served = Dtype::kBf16;
  detect::Method method = detect::Method::kSnapshot;
  std::string reason;       // why this method
  uint64_t start_step = 0;  // the optimizer's counter for this tensor now
  // How `live` came from what is trained, for the inventory: a resumed run must do the same. Empty: `live` is
  // what is trained, and the dtypes say it all.
  std::string cast = {};
};

// What a trainer saved with its own checkpoint (Publisher::state): the proof that it is the one that goes on.
struct Continuity {
  std::string run;
  uint64_t number = 0;  // newest version when it was saved
  Digest digest;        // of the served bits when it was saved
};

struct PublisherOptions {
  std::shared_ptr<Store> store;  // shared with the upload thread
  std::string run;               // identity of the run; empty: a random one, or on resume whichever is there
  bool resume = false;
  std::optional<Continuity> continuity;  // resume only if the trainer holds these bits
  bool single_writer = false;
  std::string cast_rule;                                        // in words, for the inventory
  std::vector<codec::Coding> codings = {codec::Coding::kStep};  // one part each
  std::string
      base;  // path of a checkpoint that receivers have already: version 0 is a patch on it; empty: none
  uint64_t anchor_every = 0;  // a full checkpoint beside every Nth version; 0: only where needed
  uint64_t anchor_shard_bytes = uint64_t{4} << 30;
  std::vector<std::pair<std::string, Bytes>> anchor_files;  // config.json, tokenizer: makes anchors loadable
  device::Backends backends = device::HostBackends();
  Parallel parallel{};
  Clock* clock = &SystemClock();
  Rng* rng = &SystemRng();
  LogSink* log = &NullLog();
};

struct AuditReport {
  uint64_t number = 0;  // the version that was rebuilt from the store
  uint64_t tensors = 0;
  uint64_t elements = 0;
  uint64_t compared = 0;      // elements compared bit by bit (the others have changed since: by digest)
  uint64_t different = 0;     // elements that differ
  uint64_t blocks_wrong = 0;  // blocks whose digest differs
  std::vector<std::string> first_wrong;  // up to ten, with tensor and block
};

// One thread at a time; the owner serialises. Live tensors must not be written during a call.
class Publisher {
 public:
  // Publishes version 0, or on resume the version that goes on from the newest. The live tensors' memory must
  // stay where it is.
  static Result<std::unique_ptr<Publisher>> Open(PublisherOptions options,
                                                 std::vector<PublishedTensor> tensors);
  ~Publisher();

  const std::string& run() const { return writer_->run(); }
  const Version& opened() const { return opened_; }
  const format::Inventory& inventory() const { return inventory_; }
  // Host and device bytes held beyond the live tensors.
  uint64_t memory_bytes() const;

  // What the training loop reports; see detect::ModelWatch. Tensors are known by their index in Open's list.
  Status BeforeStep(std::span<const uint32_t> tensors);
  Status AfterStep(std::vector<detect::TensorStep> steps);
  // One counter for each tensor.
  void CheckSteps(std::span<const uint64_t> counters);
  Status BeginCapture(std::span<const uint32_t> tensors);
  Status EndCapture(std::span<const uint32_t> tensors);
  Status CopyBack(uint32_t tensor, const TensorView& master);
  Status Rebind(uint32_t tensor, TensorView live);
  std::vector<detect::Demotion> Demotions() const;
  uint32_t size() const { return watch_->size(); }

  // Publishes the present served bits as the next version. durable = false returns as soon as everything is
  // encoded and uploads in the background: Flush, or the next call that publishes, waits and reports its
  // error. On error nothing is lost: the next publish carries these changes too.
  Result<Version> Publish(bool durable = true);
  Status Flush();
  // Writes the newest version's checkpoint. The served bits must still be that version's: kInvalidArgument if
  // not.
  Status WriteAnchor();

  // Digest of the present served bits; reads them all.
  Result<Continuity> state();
  // Rebuilds the newest version from the store as a receiver would and compares it with the live bits;
  // recomputes every digest with the reference kernels. Memory O(changes since the newest anchor).
  Result<AuditReport> Audit();

 private:
  struct Collected;
  struct Background;

  Publisher(PublisherOptions options, format::Inventory inventory);

  Status Watch(std::vector<PublishedTensor> tensors);
  Result<uint32_t> InInventory(uint32_t tensor) const;
  Result<std::vector<uint32_t>> InInventory(std::span<const uint32_t> tensors) const;
  Result<Version> PublishZero();
  Result<Version> PublishResumed();
  Result<std::optional<sync::VersionRecord>> FindVersion(const Digest& digest);
  Result<Collected> CompareWithBase();
  Status CollectChanges();  // into in_flight_
  Result<std::vector<delta::EncodedUpdate>> Encode(const Collected& collected, const format::BaseRef& base,
                                                   uint64_t number) const;
  format::Manifest MakeManifest(const Collected& collected, format::BaseRef base) const;
  // Parts, manifest and, if asked for, the anchor; the version exists when this succeeds.
  Result<Version> Upload(const format::Manifest& manifest, const std::vector<delta::EncodedUpdate>& updates,
                         bool anchor);
  Status WriteAnchorOf(const sync::VersionRecord& record);
  Status CommitRetrying(sync::VersionAttempt& attempt);
  // Confirms or abandons what is in flight by what became of its upload.
  Status Finish(Status uploaded);
  std::vector<Digest> TensorDigests() const;
  bool AnchorDue(uint64_t number) const;

  PublisherOptions options_;
  format::Inventory inventory_;
  std::string inventory_hash_;
  delta::GridIndex grid_;
  std::unique_ptr<detect::ModelWatch> watch_;  // in inventory order
  std::vector<uint32_t> index_;                // Open's list -> inventory
  std::unique_ptr<sync::CatalogWriter> writer_;
  Version opened_;
  uint64_t steps_ = 0;                    // observed since the last collected version
  std::unique_ptr<Collected> in_flight_;  // neither confirmed nor abandoned
  std::unique_ptr<Background> background_;
};

}  // namespace deltawire::pubsub
