#include "detect/model_watch.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace deltawire::detect {

ModelWatch::ModelWatch(const device::Backends& backends, Parallel parallel)
    : backends_(backends), parallel_(std::move(parallel)) {}

Result<std::unique_ptr<ModelWatch>> ModelWatch::Create(const device::Backends& backends, Parallel parallel,
                                                       std::vector<WatchSpec> tensors) {
  std::unique_ptr<ModelWatch> model(new ModelWatch(backends, std::move(parallel)));
  for (WatchSpec& spec : tensors) {
    DELTAWIRE_ASSIGN(auto watch, TensorWatch::Create(model->backends_, std::move(spec.tensor), spec.method,
                                                     std::move(spec.reason), spec.start_step));
    model->watches_.push_back(std::move(watch));
  }
  std::vector<uint32_t> all(model->watches_.size());
  std::iota(all.begin(), all.end(), 0u);
  model->places_ = model->PlacesOf(all);
  DELTAWIRE_TRY(
      model->ForEachBlock([](TensorWatch& watch, uint32_t, uint32_t block) { return watch.Start(block); }));
  return model;
}

std::vector<ModelWatch::Place> ModelWatch::PlacesOf(std::span<const uint32_t> tensors) const {
  std::vector<Place> places;
  for (const uint32_t tensor : tensors) {
    for (uint32_t block = 0; block < watches_[tensor]->boxes().size(); ++block) {
      places.push_back({tensor, block});
    }
  }
  return places;
}

Status ModelWatch::Run(const std::vector<Place>& places, const BlockTask& task) {
  std::vector<Status> statuses(places.size());
  parallel_.For(places.size(), [&](uint64_t i) {
    statuses[i] = task(*watches_[places[i].tensor], places[i].tensor, places[i].block);
  });
  for (size_t i = 0; i < places.size(); ++i) {
    if (!statuses[i]) {
      return Fail(statuses[i].error().Within("tensor " + watches_[places[i].tensor]->name()));
    }
  }
  return {};
}

Status ModelWatch::ForEachBlock(const BlockTask& task) { return Run(places_, task); }

Status ModelWatch::CheckIndices(std::span<const uint32_t> tensors, std::optional<Method> method) const {
  for (const uint32_t tensor : tensors) {
    if (tensor >= watches_.size()) {
      return Fail(Code::kInvalidArgument, "tensor {} was given, of {} watched ones", tensor, watches_.size());
    }
    // A demoted tensor ignores what its method was told.
    if (method && watches_[tensor]->method() != *method && !watches_[tensor]->demoted()) {
      return Fail(Code::kInvalidArgument, "tensor {} is watched by {}, not by {}", watches_[tensor]->name(),
                  MethodName(watches_[tensor]->method()), MethodName(*method));
    }
  }
  return {};
}

Status ModelWatch::BeforeStep(std::span<const uint32_t> tensors) {
  DELTAWIRE_TRY(CheckIndices(tensors, std::nullopt));
  return Run(PlacesOf(tensors),
             [](TensorWatch& watch, uint32_t, uint32_t block) { return watch.CheckFence(block); });
}

Status ModelWatch::AfterStep(std::span<const TensorStep> steps) {
  for (const TensorStep& step : steps) {
    DELTAWIRE_TRY(CheckIndices({&step.tensor, 1}, Method::kInversion));
  }
  std::vector<StepRecord> records(watches_.size());
  std::vector<uint32_t> stepped;
  for (const TensorStep& step : steps) {
    TensorWatch& watch = *watches_[step.tensor];
    StepRecord& record = records[step.tensor];
    record = MakeStepRecord(step.step, watch.live().shape);
    watch.ObserveStep(record);
    if (watch.NeedsInversion()) stepped.push_back(step.tensor);
  }
  return Run(PlacesOf(stepped), [&](TensorWatch& watch, uint32_t tensor, uint32_t block) {
    return watch.InvertBlock(block, records[tensor]);
  });
}

void ModelWatch::CheckSteps(std::span<const uint64_t> counters) {
  for (size_t i = 0; i < counters.size(); ++i) watches_[i]->CheckStep(counters[i]);
}

Status ModelWatch::BeginCapture(std::span<const uint32_t> tensors) {
  DELTAWIRE_TRY(CheckIndices(tensors, Method::kCapture));
  // One that an exception left behind.
  std::erase_if(captures_,
                [&](const Capture& capture) { return std::ranges::equal(capture.tensors, tensors); });
  Capture& capture = captures_.emplace_back();
  capture.tensors.assign(tensors.begin(), tensors.end());
  if (tensors.empty()) return {};
  uint64_t bytes = 0;
  for (const uint32_t tensor : tensors) {
    watches_[tensor]->PlaceCapture(bytes);
    bytes += watches_[tensor]->served_bytes();
  }
  const Memory& like = *watches_[tensors.front()]->live().memory;
  capture.scratch = std::exchange(spare_, nullptr);
  // Host memory is kept, because fresh pages cost more than the copy; a device's allocator keeps its own.
  if (!capture.scratch || capture.scratch->device() != DeviceKind::kHost ||
      like.device() != DeviceKind::kHost || capture.scratch->size_bytes() < bytes) {
    capture.scratch.reset();
    DELTAWIRE_ASSIGN(capture.scratch, like.AllocateLike(bytes));
  }
  const Memory& scratch = *capture.scratch;
  return Run(PlacesOf(tensors), [&](TensorWatch& watch, uint32_t, uint32_t block) {
    return watch.BeginCapture(block, scratch);
  });
}

Status ModelWatch::EndCapture(std::span<const uint32_t> tensors) {
  const auto found = std::ranges::find_if(
      captures_, [&](const Capture& capture) { return std::ranges::equal(capture.tensors, tensors); });
  if (found == captures_.end()) {
    return Fail(Code::kInvalidArgument, "the end of a capture of {} tensors that has not begun",
                tensors.size());
  }
  const std::shared_ptr<Memory> scratch = std::move(found->scratch);
  captures_.erase(found);
  if (tensors.empty()) return {};
  Status ended = Run(PlacesOf(tensors), [&](TensorWatch& watch, uint32_t, uint32_t block) {
    return watch.EndCapture(block, *scratch);
  });
  if (!spare_ || spare_->size_bytes() < scratch->size_bytes()) spare_ = scratch;
  return ended;
}

Status ModelWatch::CopyBack(uint32_t tensor, const TensorView& master) {
  DELTAWIRE_TRY(CheckIndices({&tensor, 1}, Method::kCopyBack));
  DELTAWIRE_TRY(watches_[tensor]->CheckMaster(master));
  return Run(PlacesOf({&tensor, 1}),
             [&](TensorWatch& watch, uint32_t, uint32_t block) { return watch.CopyBack(block, master); });
}

Status ModelWatch::Rebind(uint32_t tensor, TensorView live) {
  DELTAWIRE_TRY(CheckIndices({&tensor, 1}, std::nullopt));
  return watches_[tensor]->Rebind(std::move(live));
}

Status ModelWatch::Collect(Changes& changes) {
  changes.assign(watches_.size(), {});
  for (uint32_t i = 0; i < watches_.size(); ++i) changes[i].resize(watches_[i]->boxes().size());
  DELTAWIRE_TRY(ForEachBlock([&](TensorWatch& watch, uint32_t tensor, uint32_t block) -> Status {
    DELTAWIRE_ASSIGN(changes[tensor][block], watch.Collect(block));
    return {};
  }));
  std::vector<uint32_t> refuted;
  for (uint32_t i = 0; i < watches_.size(); ++i) {
    if (!watches_[i]->Refuted()) continue;
    watches_[i]->Demote();
    refuted.push_back(i);
  }
  return Run(PlacesOf(refuted), [&](TensorWatch& watch, uint32_t tensor, uint32_t block) -> Status {
    DELTAWIRE_ASSIGN(changes[tensor][block], watch.Recollect(block));
    return {};
  });
}

std::vector<Demotion> ModelWatch::Demotions() const {
  std::vector<Demotion> out;
  for (uint32_t i = 0; i < watches_.size(); ++i) {
    if (watches_[i]->demoted()) out.push_back({i, watches_[i]->method(), watches_[i]->reason()});
  }
  return out;
}

Status ModelWatch::Confirm(const ChangePointers& changes) {
  return ForEachBlock([&](TensorWatch& watch, uint32_t tensor, uint32_t block) {
    return watch.Confirm(block, changes[tensor][block]);
  });
}

void ModelWatch::Abandon(const ChangePointers& changes) {
  parallel_.For(places_.size(), [&](uint64_t i) {
    const auto [tensor, block] = places_[i];
    watches_[tensor]->Abandon(block, changes[tensor][block]);
  });
}

uint64_t ModelWatch::memory_bytes() const {
  uint64_t bytes = spare_ ? spare_->size_bytes() : 0;
  for (const Capture& capture : captures_) bytes += capture.scratch ? capture.scratch->size_bytes() : 0;
  for (const auto& watch : watches_) bytes += watch->memory_bytes();
  return bytes;
}

}  // namespace deltawire::detect
