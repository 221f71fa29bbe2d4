#include "stress/judge.h"

#include <algorithm>

#include <fmt/format.h>

#include "detect/tensor_watch.h"
#include "stress/failure.h"
#include "stress/flush_scope.h"
#include "stress/oracle.h"

namespace deltawire::stress {
namespace {

// A receiver that holds what was published, fed by one TensorWatch.
class WatchJudge {
 public:
  WatchJudge(const BatchPlan& plan, const Subject& subject, Scene& scene)
      : plan_(plan),
        subject_(subject),
        scene_(scene),
        rng_(plan.seed + plan.number),
        backends_(plan.reference ? device::Backends{&kernels::RefTable(), &kernels::RefHostTable(), nullptr}
                                 : device::HostBackends()),
        n_(scene.elements()),
        shape_{n_ / 64, 64},
        held_(n_),
        now_(n_),
        previous_(n_) {}

  Result<BatchResult> Run();

 private:
  TensorView View(const void* data, Dtype dtype) const {
    // The watch only reads.
    return TensorView::RowMajor(BorrowHost(const_cast<void*>(data), uint64_t{n_} * DtypeBytes(dtype)), 0,
                                dtype, shape_);
  }
  detect::StepRecord Record(uint64_t counter);
  void Hold(const Promise& promise, uint64_t counter);
  Status Observe(uint64_t step);
  Status Publish(uint64_t step);
  void Apply(const detect::TensorWatch& watch, uint32_t block, const BlockChange& change, uint64_t step,
             std::vector<uint16_t>& next);
  void Note(uint64_t step, uint32_t element, const char* what, std::string verdict);

  const BatchPlan& plan_;
  const Subject& subject_;
  Scene& scene_;
  SeededRng rng_;
  const device::Backends backends_;
  uint32_t n_;
  Shape shape_;
  std::unique_ptr<detect::TensorWatch> watch_;
  std::vector<uint16_t> held_, now_, previous_;
  uint64_t pending_steps_ = 0;
  BatchResult result_;
};

detect::StepRecord WatchJudge::Record(uint64_t counter) {
  detect::StepRecord record;
  record.counter = counter;
  if (IsSgd(plan_.order)) {
    const auto band = SgdBandOf(subject_, scene_);
    if (!band) {
      record.refusal = band.error();
      return record;
    }
    Hold(PromiseOf(*band), counter);
    std::optional<TensorView> y;
    if (plan_.order == Order::kSgdNesterov) y = View(scene_.second(), Dtype::kF32);
    record.undo = detect::StepRecord::Sgd{View(scene_.first(), Dtype::kF32), std::move(y), *band};
    return record;
  }
  const auto band = AdamwBandOf(subject_, plan_, scene_);
  if (!band) {
    record.refusal = band.error();
    return record;
  }
  Hold(PromiseOf(*band), counter);
  const auto dtype = [](bool bf16) { return bf16 ? Dtype::kBf16 : Dtype::kF32; };
  record.undo = detect::StepRecord::Adam{View(scene_.first(), dtype(FirstIsBf16(plan_.moments))),
                                         View(scene_.second(), dtype(SecondIsBf16(plan_.moments))), *band};
  return record;
}

void WatchJudge::Hold(const Promise& promise, uint64_t counter) {
  if (const auto element = CheckBand(promise, scene_, result_.tally)) {
    Note(counter - 1, *element, "outside the band", "");
  }
}

Status WatchJudge::Observe(uint64_t step) {
  const detect::StepRecord record = Record(step + 1);
  const FlushScope flush(plan_.flush == Flush::kStepAndDetector);
  watch_->ObserveStep(record);
  for (uint32_t b = 0; watch_->NeedsInversion() && b < watch_->boxes().size(); ++b) {
    DELTAWIRE_TRY(watch_->InvertBlock(b, record));
  }
  return {};
}

void WatchJudge::Note(uint64_t step, uint32_t element, const char* what, std::string verdict) {
  if (result_.failure) return;
  result_.failure =
      DescribeFailure(plan_, scene_, step, element, what, held_[element], now_[element], std::move(verdict));
}

void WatchJudge::Apply(const detect::TensorWatch& watch, uint32_t block, const BlockChange& change,
                       uint64_t step, std::vector<uint16_t>& next) {
  Tally& tally = result_.tally;
  // Blocks are whole rows, one after the other.
  const auto first = static_cast<uint32_t>(watch.boxes()[block].start[0] * 64);
  const auto bits = [](const Bytes& bytes, size_t i) { return LoadLe<uint16_t>(bytes.data() + 2 * i); };
  for (size_t i = 0; i < change.changed.size(); ++i) {
    const uint32_t element = first + change.changed[i];
    const uint16_t old = bits(change.old_bits, i);
    if (old != held_[element]) {
      ++tally.wrong_certificates;
      Note(step, element, "wrong certificate", fmt::format("changed from 0x{:04x}", old));
    }
    next[element] = bits(change.new_bits, i);
    tally.excess += held_[element] == now_[element] ? 1 : 0;
  }
  tally.certificates += change.changed.size();
  for (size_t i = 0; i < change.uncertain.size(); ++i) {
    const uint32_t element = first + change.uncertain[i];
    const uint16_t low = change.uncertain_low[i], old = held_[element];
    if (change.uncertain_span[i] == 1 && !IsEither(low, old)) {
      ++tally.wrong_certificates;
      Note(step, element, "wrong certificate", fmt::format("0x{:04x} or its successor", low));
    }
    next[element] = bits(change.uncertain_new, i);
    tally.excess += old == now_[element] ? 1 : 0;
  }
  tally.uncertain += change.uncertain.size();
}

Status WatchJudge::Publish(uint64_t step) {
  Tally& tally = result_.tally;
  std::vector<uint16_t> next = held_;
  std::vector<BlockChange> changes;
  {
    const FlushScope flush(plan_.flush == Flush::kStepAndDetector);
    for (uint32_t b = 0; b < watch_->boxes().size(); ++b) {
      DELTAWIRE_ASSIGN(changes.emplace_back(), watch_->Collect(b));
    }
  }
  const std::vector<std::string> notes = watch_->TakeNotes();
  for (uint32_t b = 0; b < changes.size(); ++b) {
    if (!changes[b].dense) {
      Apply(*watch_, b, changes[b], step, next);
      continue;
    }
    // TensorWatch found itself wrong, or was told that it can't invert.
    const auto first = static_cast<uint32_t>(watch_->boxes()[b].start[0] * 64);
    const uint64_t count = ElementCount(watch_->boxes()[b]);
    tally.refused += count;
    Note(step, first, "refused", notes.empty() ? "block sent dense" : notes.front());
    std::copy_n(now_.begin() + first, count, next.begin() + first);
  }
  tally.elements += pending_steps_ * n_;
  for (uint32_t i = 0; i < n_; ++i) {
    tally.changed += held_[i] != now_[i] ? 1 : 0;
    if (next[i] == now_[i]) continue;
    ++tally.false_negatives;
    Note(step, i, "false negative", fmt::format("0x{:04x} after the update was applied", next[i]));
  }
  // A publish that failed: its changes come again with the next one.
  const bool durable = rng_.Next() % 8 != 0;
  for (uint32_t b = 0; b < changes.size(); ++b) {
    const BlockChange* change = changes[b].empty() ? nullptr : &changes[b];
    if (durable) DELTAWIRE_TRY(watch_->Confirm(b, change));
    if (!durable) watch_->Abandon(b, change);
  }
  if (durable) held_ = now_;
  pending_steps_ = 0;
  return {};
}

Result<BatchResult> WatchJudge::Run() {
  std::vector<Box> blocks = *GridBlocks(shape_, {0, 3});
  DELTAWIRE_ASSIGN(watch_,
                   detect::TensorWatch::Create(
                       backends_, {"w", View(scene_.theta(), Dtype::kF32), Dtype::kBf16, std::move(blocks)},
                       detect::Method::kInversion, "", 0));
  for (uint32_t b = 0; b < watch_->boxes().size(); ++b) DELTAWIRE_TRY(watch_->Start(b));
  Export(scene_.theta(), false, held_.data(), n_);
  now_ = held_;
  for (uint64_t step = 0; step < scene_.steps(); ++step) {
    for (uint32_t b = 0; b < watch_->boxes().size(); ++b) DELTAWIRE_TRY(watch_->CheckFence(b));
    std::swap(previous_, now_);
    scene_.Step();
    Export(scene_.theta(), false, now_.data(), n_);
    CountNaive(plan_, scene_, previous_.data(), now_.data(), result_.tally);
    DELTAWIRE_TRY(Observe(step));
    ++pending_steps_;
    if ((step + 1) % plan_.interval == 0) DELTAWIRE_TRY(Publish(step));
  }
  return std::move(result_);
}

}  // namespace

Result<BatchResult> JudgeWatch(const BatchPlan& plan, const Subject& subject, Scene& scene) {
  return WatchJudge(plan, subject, scene).Run();
}

}  // namespace deltawire::stress
