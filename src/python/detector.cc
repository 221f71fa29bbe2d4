#include "python/detector.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>

#include "device/backends.h"
#include "python/owner_process.h"
#include "python/watching.h"
#include "tensor/shape.h"

namespace deltawire::python {

namespace nb = nanobind;

namespace {

// What changed in one tensor: parallel arrays, positions row-major in the tensor and ascending.
struct TensorChange {
  std::vector<uint64_t> positions;
  Bytes old_bits;  // served width each; zeros where unknown
  Bytes new_bits;
  Bytes known;  // 1: old_bits are the element's bits at the last confirmed collection

  void Add(uint64_t position, const uint8_t* old_at, const uint8_t* new_at, uint32_t width) {
    positions.push_back(position);
    if (old_at != nullptr) {
      old_bits.insert(old_bits.end(), old_at, old_at + width);
    } else {
      old_bits.resize(old_bits.size() + width, 0);
    }
    new_bits.insert(new_bits.end(), new_at, new_at + width);
    known.push_back(old_at != nullptr ? 1 : 0);
  }
};

// Positions in a box -> positions in its tensor.
class InTensor {
 public:
  InTensor(const Box& box, const Shape& shape) : box_(box), strides_(RowMajorStrides(shape)) {}
  uint64_t operator()(uint64_t position) const {
    uint64_t out = 0;
    for (size_t d = box_.size.size(); d-- > 0;) {
      out += (box_.start[d] + position % box_.size[d]) * static_cast<uint64_t>(strides_[d]);
      position /= box_.size[d];
    }
    return out;
  }

 private:
  const Box& box_;
  std::vector<int64_t> strides_;
};

void Append(const BlockChange& change, const InTensor& at, uint64_t elements, uint32_t width,
            TensorChange& out) {
  if (change.dense) {
    for (uint64_t i = 0; i < elements; ++i) {
      out.Add(at(i), nullptr, change.dense_bits.data() + i * width, width);
    }
    return;
  }
  size_t i = 0;
  size_t j = 0;
  while (i < change.changed.size() || j < change.uncertain.size()) {
    if (j == change.uncertain.size() ||
        (i < change.changed.size() && change.changed[i] < change.uncertain[j])) {
      out.Add(at(change.changed[i]), change.old_bits.data() + i * width, change.new_bits.data() + i * width,
              width);
      ++i;
    } else {
      out.Add(at(change.uncertain[j]), nullptr, change.uncertain_new.data() + j * width, width);
      ++j;
    }
  }
}

class Detector {
 public:
  explicit Detector(std::unique_ptr<detect::ModelWatch> watch) : watch_(std::move(watch)) {}
  ~Detector() {
    if (!owner_.IsThisProcess()) OwnerProcess::Leave(watch_);
  }
  Detector(const Detector&) = delete;
  Detector& operator=(const Detector&) = delete;

  detect::ModelWatch& watch() { return *watch_; }

  std::vector<TensorChange> Collect() {
    if (collected_) {
      throw CoreError(Error(Code::kInvalidArgument,
                            "the last collected changes are neither confirmed nor "
                            "abandoned; call confirm() or abandon() first"));
    }
    collected_.emplace();
    OrThrow(WithoutGil([&]() -> Status {
      const Status status = watch_->Collect(*collected_);
      if (!status) Settle([&](const auto& changes) { watch_->Abandon(changes); });
      return status;
    }));
    std::vector<TensorChange> out(watch_->size());
    for (uint32_t i = 0; i < watch_->size(); ++i) {
      const detect::TensorWatch& tensor = (*watch_)[i];
      for (uint32_t b = 0; b < tensor.boxes().size(); ++b) {
        Append((*collected_)[i][b], {tensor.boxes()[b], tensor.live().shape}, ElementCount(tensor.boxes()[b]),
               DtypeBytes(tensor.served()), out[i]);
      }
    }
    return out;
  }

  // how: called with what was collected.
  template <class How>
  void Settle(const How& how) {
    if (!collected_) {
      throw CoreError(
          Error(Code::kInvalidArgument, "nothing was collected since the last confirm or abandon"));
    }
    detect::ModelWatch::ChangePointers changes(collected_->size());
    for (size_t i = 0; i < changes.size(); ++i) {
      for (const BlockChange& change : (*collected_)[i])
        changes[i].push_back(change.empty() ? nullptr : &change);
    }
    how(changes);
    collected_.reset();
  }
  void Confirm() {
    Status confirmed;
    Settle([&](const auto& changes) { confirmed = watch_->Confirm(changes); });
    OrThrow(std::move(confirmed));
  }
  void Abandon() {
    Settle([&](const auto& changes) { watch_->Abandon(changes); });
  }

  std::vector<std::string> Digests() {
    std::vector<std::string> out;
    for (uint32_t i = 0; i < watch_->size(); ++i) {
      Digest digest;
      for (uint32_t b = 0; b < (*watch_)[i].boxes().size(); ++b) digest += (*watch_)[i].Recompute(b);
      out.push_back(digest.Hex());
    }
    return out;
  }

  // (index, note) of the last collection.
  std::vector<std::pair<uint32_t, std::string>> Notes() {
    std::vector<std::pair<uint32_t, std::string>> out;
    for (uint32_t i = 0; i < watch_->size(); ++i) {
      for (std::string& note : (*watch_)[i].TakeNotes()) out.emplace_back(i, std::move(note));
    }
    return out;
  }

 private:
  OwnerProcess owner_;
  std::unique_ptr<detect::ModelWatch> watch_;
  std::optional<detect::ModelWatch::Changes> collected_;
};

std::unique_ptr<Detector> OpenDetector(const std::vector<TensorTuple>& tensors, int threads) {
  std::vector<detect::WatchSpec> specs;
  for (const auto& [name, aliases, live, served, method, reason, step] : tensors) {
    // Cut along the first axis alone: blocks follow each other, and so do their positions.
    auto boxes = GridBlocks(live.view.shape, {0, 1});
    if (!boxes) {
      throw CoreError(Error(
          Code::kInvalidArgument,
          fmt::format("tensor {}: shape {} can't be cut into blocks", name, ShapeText(live.view.shape))));
    }
    specs.push_back(
        {{name, live.view, DtypeOrThrow(served), *std::move(boxes)}, MethodOrThrow(method), reason, step});
  }
  return std::make_unique<Detector>(OrThrow(WithoutGil(
      [&] { return detect::ModelWatch::Create(PythonBackends(), Parallel(threads), std::move(specs)); })));
}

nb::bytes BytesOf(const Bytes& bytes) { return nb::bytes(bytes.data(), bytes.size()); }

}  // namespace

void BindDetector(nb::module_& module) {
  nb::class_<TensorChange>(module, "TensorChange", "Parallel arrays; positions are row-major in the tensor.")
      .def_prop_ro("positions",
                   [](const TensorChange& self) {
                     return nb::bytes(self.positions.data(), self.positions.size() * sizeof(uint64_t));
                   })
      .def_prop_ro("old_bits", [](const TensorChange& self) { return BytesOf(self.old_bits); })
      .def_prop_ro("new_bits", [](const TensorChange& self) { return BytesOf(self.new_bits); })
      .def_prop_ro("known", [](const TensorChange& self) { return BytesOf(self.known); });
  module.def(
      "check_cast",
      [](const std::string& stored, const std::string& served) {
        OrThrow(device::CastFor(DtypeOrThrow(stored), DtypeOrThrow(served)));
      },
      nb::arg("stored"), nb::arg("served"), "Raises where no kernel casts the one dtype to the other.");
  nb::class_<Detector> detector(module, "Detector", "Watches tensors without a store.");
  detector.def(nb::new_(&OpenDetector), nb::arg("tensors"), nb::kw_only(), nb::arg("threads"))
      .def("collect", &Detector::Collect, "One TensorChange for each tensor, since the last confirmed ones.")
      .def("confirm", &Detector::Confirm)
      .def("abandon", &Detector::Abandon)
      .def("digests", &Detector::Digests, "Of the present served bits, one for each tensor.")
      .def("take_notes", &Detector::Notes, "(index, what was out of the ordinary) of the last collection.");
  BindWatching(detector, [](Detector& self) -> detect::ModelWatch& { return self.watch(); });
}

}  // namespace deltawire::python
