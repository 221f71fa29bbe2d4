#include "pubsub/publisher.h"

#include <algorithm>
#include <future>
#include <map>
#include <numeric>
#include <set>

#include "pubsub/anchor_io.h"
#include "pubsub/coding_name.h"
#include "pubsub/publisher_collected.h"
#include "sync/catalog.h"

namespace deltawire::pubsub {
namespace {

constexpr int kCommitTries = 5;
constexpr int64_t kFirstRetryMs = 50;

std::string CastText(const PublishedTensor& tensor) {
  if (!tensor.cast.empty()) return tensor.cast;
  if (tensor.live.dtype == tensor.served) return "none";
  return fmt::format("{}->{}", DtypeName(tensor.live.dtype), DtypeName(tensor.served));
}

// What a run's inventory has settled for whoever goes on with it. Both are ordered by name.
void Settle(const format::Inventory& run, format::Inventory& mine) {
  mine.cast_rule = run.cast_rule;
  auto other = run.tensors.begin();
  for (auto& tensor : mine.tensors) {
    while (other != run.tensors.end() && other->name < tensor.name) ++other;
    if (other == run.tensors.end()) break;
    if (other->name == tensor.name && other->shape == tensor.shape) tensor.grid = other->grid;
  }
}

}  // namespace

struct Publisher::Background {
  std::future<Status> done;
};

Publisher::Publisher(PublisherOptions options, format::Inventory inventory)
    : options_(std::move(options)),
      inventory_(std::move(inventory)),
      inventory_hash_(format::InventoryHash(inventory_)),
      grid_(inventory_) {}

Publisher::~Publisher() {
  if (background_) background_->done.wait();
}

Result<std::unique_ptr<Publisher>> Publisher::Open(PublisherOptions options,
                                                   std::vector<PublishedTensor> tensors) {
  format::Inventory inventory;
  inventory.cast_rule = options.cast_rule;
  for (const auto& tensor : tensors) {
    std::vector<std::string> aliases = tensor.aliases;
    std::sort(aliases.begin(), aliases.end());
    inventory.tensors.push_back({.name = tensor.name,
                                 .aliases = std::move(aliases),
                                 .dtype = tensor.served,
                                 .shape = tensor.live.shape,
                                 .grid = DefaultGrid(tensor.live.shape),
                                 .cast = CastText(tensor)});
  }
  std::sort(inventory.tensors.begin(), inventory.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  DELTAWIRE_TRY(format::CheckInventory(inventory));

  // Without parts no receiver could follow; the parts of one coding together make a version.
  const std::set<codec::Coding> codings(options.codings.begin(), options.codings.end());
  if (codings.empty() || codings.size() != options.codings.size()) {
    return Fail(Code::kInvalidArgument,
                "{} codings were given, {} different ones; give at least one, each once",
                options.codings.size(), codings.size());
  }
  if (options.continuity && options.run.empty()) options.run = options.continuity->run;
  if (options.continuity && options.run != options.continuity->run) {
    return Fail(Code::kWrongRun, "the saved state belongs to run {}, not {}", options.continuity->run,
                options.run);
  }
  if (options.run.empty() && !options.resume) options.run = options.rng->HexId(32);

  const sync::CatalogWriter::Options writer_options{
      .run = options.run, .writer = options.rng->HexId(32), .single_writer = options.single_writer};
  auto writer =
      options.resume
          ? sync::CatalogWriter::Resume(options.store, writer_options, *options.clock, *options.rng)
          : sync::CatalogWriter::Create(options.store, writer_options, *options.clock, *options.rng);
  if (!writer) return Fail(std::move(writer).error());
  if (options.resume) {
    // How the casts were chosen was settled when the run began (perhaps from a base that is not needed any
    // more), and so were the grids (by a release that may have cut in another way); that the rest is the same
    // is checked tensor by tensor.
    sync::Catalog catalog(options.store, (*writer)->run());
    const std::string& hash = (*writer)->newest()->manifest.inventory;
    const auto settled = catalog.LoadInventory(hash);
    if (settled) Settle(**settled, inventory);
    // Deleted or damaged in the store: a trainer that has the very same one puts it back.
    if (!settled && format::InventoryHash(inventory) != hash) return Fail(settled.error());
  }
  std::unique_ptr<Publisher> publisher(new Publisher(std::move(options), std::move(inventory)));
  Publisher& self = *publisher;
  self.writer_ = *std::move(writer);
  DELTAWIRE_TRY(self.Watch(std::move(tensors)));
  const Stopwatch watch(*self.options_.clock);
  DELTAWIRE_ASSIGN(self.opened_, self.options_.resume ? self.PublishResumed() : self.PublishZero());
  self.opened_.seconds = watch.Seconds();
  return publisher;
}

Status Publisher::Watch(std::vector<PublishedTensor> tensors) {
  std::map<std::string, uint32_t> order;
  for (uint32_t i = 0; i < inventory_.tensors.size(); ++i) order[inventory_.tensors[i].name] = i;
  std::vector<detect::WatchSpec> specs(tensors.size());
  for (PublishedTensor& tensor : tensors) {
    const uint32_t i = order[tensor.name];
    index_.push_back(i);
    specs[i] = {{tensor.name, std::move(tensor.live), tensor.served, grid_.boxes(i)},
                tensor.method,
                std::move(tensor.reason),
                tensor.start_step};
  }
  DELTAWIRE_ASSIGN(watch_,
                   detect::ModelWatch::Create(options_.backends, options_.parallel, std::move(specs)));
  return {};
}

uint64_t Publisher::memory_bytes() const { return watch_->memory_bytes(); }

Result<uint32_t> Publisher::InInventory(uint32_t tensor) const {
  if (tensor < index_.size()) return index_[tensor];
  return Fail(Code::kInvalidArgument, "tensor {} was given, of {} published ones", tensor, index_.size());
}

Result<std::vector<uint32_t>> Publisher::InInventory(std::span<const uint32_t> tensors) const {
  std::vector<uint32_t> out(tensors.size());
  for (size_t i = 0; i < out.size(); ++i) {
    DELTAWIRE_ASSIGN(out[i], InInventory(tensors[i]));
  }
  return out;
}

Status Publisher::BeforeStep(std::span<const uint32_t> tensors) {
  DELTAWIRE_ASSIGN(const auto mine, InInventory(tensors));
  return watch_->BeforeStep(mine);
}

Status Publisher::AfterStep(std::vector<detect::TensorStep> steps) {
  ++steps_;
  for (detect::TensorStep& step : steps) {
    DELTAWIRE_ASSIGN(step.tensor, InInventory(step.tensor));
  }
  return watch_->AfterStep(steps);
}

void Publisher::CheckSteps(std::span<const uint64_t> counters) {
  std::vector<uint64_t> mine(watch_->size());
  for (size_t i = 0; i < counters.size(); ++i) mine[index_[i]] = counters[i];
  watch_->CheckSteps(mine);
}

Status Publisher::BeginCapture(std::span<const uint32_t> tensors) {
  DELTAWIRE_ASSIGN(const auto mine, InInventory(tensors));
  return watch_->BeginCapture(mine);
}

Status Publisher::EndCapture(std::span<const uint32_t> tensors) {
  DELTAWIRE_ASSIGN(const auto mine, InInventory(tensors));
  return watch_->EndCapture(mine);
}

Status Publisher::CopyBack(uint32_t tensor, const TensorView& master) {
  DELTAWIRE_ASSIGN(const auto mine, InInventory(tensor));
  return watch_->CopyBack(mine, master);
}

Status Publisher::Rebind(uint32_t tensor, TensorView live) {
  DELTAWIRE_ASSIGN(const auto mine, InInventory(tensor));
  return watch_->Rebind(mine, std::move(live));
}

std::vector<detect::Demotion> Publisher::Demotions() const {
  std::vector<detect::Demotion> demotions = watch_->Demotions();
  for (detect::Demotion& demotion : demotions) {
    const auto given = std::find(index_.begin(), index_.end(), demotion.tensor);
    demotion.tensor = static_cast<uint32_t>(given - index_.begin());
  }
  return demotions;
}

Status Publisher::CollectChanges() {
  detect::ModelWatch::Changes changes;
  const Status collected = watch_->Collect(changes);

  // Kept whatever happened: blocks that were collected must be confirmed or abandoned.
  in_flight_ = std::make_unique<Collected>();
  in_flight_->steps = std::exchange(steps_, 0);
  for (uint32_t i = 0; i < watch_->size(); ++i) {
    detect::TensorWatch& watch = (*watch_)[i];
    delta::ChangedTensor tensor{i, {}, {}};
    for (uint32_t b = 0; b < changes[i].size(); ++b) {
      tensor.after += watch.DigestAt(b);
      if (!changes[i][b].empty()) tensor.blocks.push_back({b, std::move(changes[i][b]), watch.DigestAt(b)});
    }
    in_flight_->digest += tensor.after;
    for (const std::string& note : watch.TakeNotes()) {
      in_flight_->notes.push_back(fmt::format("tensor {}: {}", watch.name(), note));
    }
    in_flight_->Add(std::move(tensor), grid_);
  }
  return collected;
}

Result<std::vector<delta::EncodedUpdate>> Publisher::Encode(const Collected& collected,
                                                            const format::BaseRef& base,
                                                            uint64_t number) const {
  format::UpdateHeader header;
  header.run = writer_->run();
  header.number = number;
  if (base.kind == format::BaseRef::Kind::kVersion) header.base = base.number;
  header.writer = writer_->writer();
  header.inventory = inventory_hash_;
  header.base_digest = base.digest;
  header.digest = collected.digest;
  delta::EncodeOptions encoding;
  encoding.source.read = [this](uint32_t tensor, const Box& box, MutableByteSpan bits) -> Status {
    (*watch_)[tensor].ReadBox(box, bits);
    return {};
  };
  std::vector<delta::EncodedUpdate> updates;
  for (const codec::Coding coding : options_.codings) {
    encoding.coding = coding;
    DELTAWIRE_ASSIGN(auto update, delta::EncodeUpdate(header, inventory_, grid_, collected.tensors, encoding,
                                                      options_.parallel));
    updates.push_back(std::move(update));
  }
  return updates;
}

format::Manifest Publisher::MakeManifest(const Collected& collected, format::BaseRef base) const {
  format::Manifest manifest;
  manifest.inventory = inventory_hash_;
  manifest.digest = collected.digest;
  manifest.steps = collected.steps;
  manifest.base = std::move(base);
  manifest.counts = collected.counts;
  std::map<std::pair<std::string, std::string>, format::DetectorUse> uses;
  for (uint32_t i = 0; i < watch_->size(); ++i) {
    const detect::TensorWatch& watch = (*watch_)[i];
    const std::string name(detect::MethodName(watch.method()));
    auto& use = uses[{name, watch.reason()}];
    use.detector = name;
    use.reason = watch.reason();
    ++use.tensors;
    use.elements += *ElementCount(watch.live().shape);
  }
  for (auto& [key, use] : uses) manifest.detectors.push_back(std::move(use));
  return manifest;
}

Result<Version> Publisher::Upload(const format::Manifest& prepared,
                                  const std::vector<delta::EncodedUpdate>& updates, bool anchor) {
  Clock& clock = *options_.clock;
  Stopwatch stage(clock);
  format::Manifest manifest = prepared;
  DELTAWIRE_ASSIGN(const auto attempt, writer_->BeginVersion(writer_->next_number()));
  uint64_t bytes = 0;
  for (size_t i = 0; i < updates.size(); ++i) {
    const delta::EncodedUpdate& update = updates[i];
    const ByteSpan pieces[] = {update.frame.head, update.blocks, update.frame.tail};
    DELTAWIRE_ASSIGN(format::ObjectRef object, attempt->PutPart(pieces));
    bytes += object.bytes;
    manifest.parts.push_back(
        {std::move(object), std::string(CodingName(options_.codings[i])), update.frame.table});
  }
  // So that errors can name a tensor, all tensors' digests stand beside version 0 and every anchor.
  if (anchor || attempt->number() == 0) {
    DELTAWIRE_ASSIGN(manifest.tensor_digests, attempt->PutTensorDigests(TensorDigests()));
    bytes += manifest.tensor_digests->bytes;
  }
  DELTAWIRE_ASSIGN(const sync::VersionRecord record, attempt->Seal(std::move(manifest)));
  Version version = VersionFromManifest(record.manifest);
  version.bytes = bytes;
  version.stages.emplace_back("write", stage.Seconds());
  if (anchor) {
    stage = Stopwatch(clock);
    DELTAWIRE_TRY(WriteAnchorOf(record));
    version.stages.emplace_back("anchor", stage.Seconds());
  }
  stage = Stopwatch(clock);
  DELTAWIRE_TRY(CommitRetrying(*attempt));
  version.stages.emplace_back("commit", stage.Seconds());
  return version;
}

Status Publisher::CommitRetrying(sync::VersionAttempt& attempt) {
  int64_t wait_ms = kFirstRetryMs;
  for (int tries = 1;; ++tries) {
    const Status status = attempt.Commit();
    if (status || status.error().code() != Code::kIo || tries == kCommitTries) return status;
    options_.clock->SleepMillis(wait_ms);
    wait_ms *= 2;
  }
}

Status Publisher::Finish(Status uploaded) {
  if (!uploaded && writer_->unsettled()) return uploaded;  // unclear: decided by the next publish
  const std::unique_ptr<Collected> collected = std::move(in_flight_);
  detect::ModelWatch::ChangePointers changes(watch_->size());
  for (uint32_t i = 0; i < watch_->size(); ++i) changes[i].resize(grid_.boxes(i).size(), nullptr);
  for (const delta::ChangedTensor& tensor : collected->tensors) {
    for (const delta::ChangedBlock& block : tensor.blocks)
      changes[tensor.tensor][block.block] = &block.change;
  }
  if (uploaded) {
    const Status confirmed = watch_->Confirm(changes);
    if (confirmed) return {};
    const auto published =
        fmt::format("version {} is published, but the next can't be compared with it; open a new publisher",
                    writer_->newest()->number());
    return Fail(confirmed.error().Within(published));
  }
  watch_->Abandon(changes);
  steps_ += collected->steps;
  return uploaded;
}

Status Publisher::Flush() {
  if (background_) {
    Status uploaded = background_->done.get();
    background_.reset();
    DELTAWIRE_TRY(Finish(std::move(uploaded)));
  }
  if (in_flight_) {
    DELTAWIRE_ASSIGN(const auto settled, writer_->Settle());
    // Settled without a version: the outcome is known now and is not an error of this call.
    if (settled) return Finish({});
    (void)Finish(Fail(Code::kIo, "the version was not published"));
  }
  return {};
}

Result<Version> Publisher::Publish(bool durable) {
  Clock& clock = *options_.clock;
  const Stopwatch total(clock);
  DELTAWIRE_TRY(Flush());
  Stopwatch stage(clock);
  if (auto collected = CollectChanges(); !collected) return Fail(Finish(std::move(collected)).error());
  const double detect_seconds = stage.Seconds();
  stage = Stopwatch(clock);

  const sync::VersionRecord& newest = *writer_->newest();
  const uint64_t number = writer_->next_number();
  const format::BaseRef base{.kind = format::BaseRef::Kind::kVersion,
                             .number = newest.number(),
                             .manifest = newest.sha256,
                             .digest = newest.manifest.digest};
  auto updates = Encode(*in_flight_, base, number);
  if (!updates) return Fail(Finish(Fail(updates.error())).error());
  const double encode_seconds = stage.Seconds();
  const format::Manifest manifest = MakeManifest(*in_flight_, base);
  const bool anchor = AnchorDue(number);
  std::vector<std::string> notes = in_flight_->notes;

  Version version = VersionFromManifest(manifest);
  version.number = number;
  if (durable || anchor) {  // an anchor is read from the live weights, which move after this call
    auto uploaded = Upload(manifest, *updates, anchor);
    DELTAWIRE_TRY(Finish(uploaded ? Status{} : Status(Fail(uploaded.error()))));
    version = *std::move(uploaded);
  } else {
    for (const auto& update : *updates) version.bytes += update.size_bytes();
    background_ = std::make_unique<Background>();
    background_->done =
        std::async(std::launch::async, [this, manifest, moved = *std::move(updates)]() -> Status {
          DELTAWIRE_TRY(Upload(manifest, moved, false));
          return {};
        });
  }
  version.stages.insert(version.stages.begin(), {{"detect", detect_seconds}, {"encode", encode_seconds}});
  version.notes = std::move(notes);
  for (const std::string& note : version.notes) options_.log->Log(LogLevel::kInfo, note);
  version.seconds = total.Seconds();
  return version;
}

bool Publisher::AnchorDue(uint64_t number) const {
  return options_.anchor_every != 0 && number % options_.anchor_every == 0;
}

std::vector<Digest> Publisher::TensorDigests() const {
  std::vector<Digest> digests(watch_->size());
  for (const auto [tensor, block] : grid_.places()) {
    digests[tensor] +=
        in_flight_ ? (*watch_)[tensor].DigestAt(block) : (*watch_)[tensor].PublishedDigest(block);
  }
  return digests;
}

Status Publisher::WriteAnchorOf(const sync::VersionRecord& record) {
  DELTAWIRE_ASSIGN(const auto anchor, writer_->BeginAnchor(record));
  const auto read = [this](uint32_t tensor, const Box& box, MutableByteSpan bits) -> Status {
    (*watch_)[tensor].ReadBox(box, bits);
    return {};
  };
  DELTAWIRE_TRY(WriteAnchorTensors(*anchor, inventory_, read, options_.anchor_shard_bytes));
  for (const auto& [name, bytes] : options_.anchor_files) DELTAWIRE_TRY(anchor->PutFile(name, bytes));
  DELTAWIRE_TRY(anchor->PutTensorDigests(TensorDigests()));
  return anchor->Commit();
}

Status Publisher::WriteAnchor() {
  DELTAWIRE_TRY(Flush());
  std::vector<uint8_t> moved(watch_->size(), 0);
  DELTAWIRE_TRY(
      watch_->ForEachBlock([&](detect::TensorWatch& watch, uint32_t tensor, uint32_t block) -> Status {
        if (watch.Recompute(block) != watch.PublishedDigest(block)) moved[tensor] = 1;
        return {};
      }));
  const auto count = std::accumulate(moved.begin(), moved.end(), uint64_t{0});
  if (count != 0) {
    return Fail(Code::kInvalidArgument,
                "{} tensors have changed since version {} was published; call anchor() right after publish()",
                count, writer_->newest()->number());
  }
  return WriteAnchorOf(*writer_->newest());
}

Result<Continuity> Publisher::state() {
  DELTAWIRE_TRY(Flush());
  std::vector<Digest> digests(grid_.places().size());
  options_.parallel.For(digests.size(), [&](uint64_t i) {
    digests[i] = (*watch_)[grid_.places()[i].tensor].Recompute(grid_.places()[i].block);
  });
  return Continuity{writer_->run(), writer_->newest()->number(),
                    std::accumulate(digests.begin(), digests.end(), Digest{})};
}

}  // namespace deltawire::pubsub
