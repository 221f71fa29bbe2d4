#include "kernels/kernels.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/adamw_band.h"
#include "kernels/sgd_band.h"
#include "python/errors.h"
#include "python/kernels.h"
#include "python/tensor.h"
#include "python/torch_table.h"

namespace deltawire::python {

namespace nb = nanobind;

namespace {

using kernels::Cast;
using AdamwTuple = std::tuple<double, double, double, double, double>;  // lr, weight decay, beta1, beta2, eps
using SgdTuple = std::tuple<double, double, double>;                    // lr, weight decay, factor of y
// lanes, changed, changed_old, uncertain, uncertain_low, uncertain_span
using InvertedTuple =
    std::tuple<std::pair<uint64_t, uint64_t>, nb::bytes, nb::bytes, nb::bytes, nb::bytes, nb::bytes>;

nb::bytes ToBytes(const void* data, uint64_t size_bytes) { return nb::bytes(data, size_bytes); }

// A memory, and a byte offset into it that may stand before its first byte.
class Place {
 public:
  Place(const MemoryRef& memory, int64_t offset) : memory_(*memory.memory), offset_(offset) {}

  // Throws unless elements [first, last] of `width` bytes lie inside.
  const Place& Check(int64_t first, int64_t last, uint32_t width) const {
    const int64_t size = static_cast<int64_t>(memory_.size_bytes());
    if (offset_ + first * width < 0 || offset_ + (last + 1) * width > size) {
      throw CoreError(
          Error(Code::kInvalidArgument,
                fmt::format("elements {} to {} of {} bytes at byte {} are outside a memory of {} bytes",
                            first, last, width, offset_, size)));
    }
    return *this;
  }
  kernels::Source source() const { return {memory_.handle(), static_cast<uint64_t>(offset_)}; }
  kernels::Target target() const { return {memory_.handle(), static_cast<uint64_t>(offset_)}; }
  const Memory& memory() const { return memory_; }

 private:
  const Memory& memory_;
  int64_t offset_;
};

Cast CheckedCast(int cast) {
  if (cast < 0 || cast > static_cast<int>(Cast::kF16ToF32)) {
    throw CoreError(Error(Code::kInvalidArgument, fmt::format("there is no cast {}", cast)));
  }
  return static_cast<Cast>(cast);
}

uint32_t CheckedCount(uint64_t n) {
  if (n > kernels::kMaxElements) {
    throw CoreError(Error(Code::kInvalidArgument, fmt::format("{} elements are more than a block holds", n)));
  }
  return static_cast<uint32_t>(n);
}

// Positions as little-endian uint32, ascending.
struct Positions {
  explicit Positions(const nb::bytes& bytes)
      : data(static_cast<const uint32_t*>(bytes.data())), count(CheckedCount(bytes.size() / 4)) {}
  const Place& CheckIn(const Place& place, uint32_t width) const {
    return count == 0 ? place : place.Check(data[0], data[count - 1], width);
  }
  const uint32_t* data;
  uint32_t count;
};

class Kernels {
 public:
  explicit Kernels(const std::string& name) {
    if (name == "ref") {
      table_ = &kernels::RefTable();
    } else if (name == "cpu") {
      table_ = &kernels::CpuTable();
    } else if (name == "torch") {
      table_ = &TorchTable();
    } else {
      throw CoreError(Error(Code::kInvalidArgument, "kernels are ref, cpu or torch, not " + name));
    }
  }

  std::pair<uint64_t, uint64_t> Digest(const MemoryRef& memory, int64_t offset, int cast, uint64_t n,
                                       uint64_t canonical, uint64_t key) const {
    const Place live = At(memory, offset, n, kernels::StoredBytes(CheckedCast(cast)));
    uint64_t lanes[2] = {0, 0};
    WithoutGil(
        [&] { table_->digest(live.source(), CheckedCast(cast), CheckedCount(n), canonical, key, lanes); });
    OrThrow(live.memory().Check());
    return {lanes[0], lanes[1]};
  }

  std::tuple<nb::bytes, nb::bytes, nb::bytes> Compare(const MemoryRef& old_memory, int64_t old_offset,
                                                      const MemoryRef& memory, int64_t offset, int cast,
                                                      uint64_t n) const {
    const uint32_t width = kernels::ServedBytes(CheckedCast(cast));
    const Place old = At(old_memory, old_offset, n, width);
    const Place live = At(memory, offset, n, kernels::StoredBytes(CheckedCast(cast)));
    const auto positions = std::make_unique<uint32_t[]>(n);
    const auto old_bits = std::make_unique<uint8_t[]>(n * width);
    const auto new_bits = std::make_unique<uint8_t[]>(n * width);
    const uint64_t count = WithoutGil([&] {
      return table_->compare(old.source(), live.source(), CheckedCast(cast), CheckedCount(n), positions.get(),
                             old_bits.get(), new_bits.get());
    });
    OrThrow(live.memory().Check());
    return {ToBytes(positions.get(), count * 4), ToBytes(old_bits.get(), count * width),
            ToBytes(new_bits.get(), count * width)};
  }

  nb::bytes ReadStrided(const MemoryRef& memory, int64_t offset, int cast, int64_t stride, uint64_t n) const {
    const Place live = Of(memory, offset);
    const uint32_t stored = kernels::StoredBytes(CheckedCast(cast));
    const uint64_t bytes = n * kernels::ServedBytes(CheckedCast(cast));
    if (n != 0)
      live.Check(0, 0, stored)
          .Check(stride * static_cast<int64_t>(n - 1), stride * static_cast<int64_t>(n - 1), stored);
    const auto out = std::make_unique<uint8_t[]>(bytes);
    WithoutGil([&] {
      if (stride == 1) {
        table_->read(live.source(), CheckedCast(cast), CheckedCount(n), out.get());
      } else {
        table_->read_strided(live.source(), CheckedCast(cast), stride, CheckedCount(n), out.get());
      }
    });
    OrThrow(live.memory().Check());
    return ToBytes(out.get(), bytes);
  }

  void Copy(const MemoryRef& memory, int64_t offset, int cast, uint64_t n, const MemoryRef& to_memory,
            int64_t to_offset) const {
    const Place live = At(memory, offset, n, kernels::StoredBytes(CheckedCast(cast)));
    const Place to = At(to_memory, to_offset, n, kernels::ServedBytes(CheckedCast(cast)));
    WithoutGil([&] { table_->copy(live.source(), CheckedCast(cast), CheckedCount(n), to.target()); });
    OrThrow(live.memory().Check());
  }

  nb::bytes Gather(const MemoryRef& memory, int64_t offset, int cast, const nb::bytes& positions) const {
    const Positions at(positions);
    const Place live = Of(memory, offset);
    at.CheckIn(live, kernels::StoredBytes(CheckedCast(cast)));
    const uint64_t bytes = uint64_t{at.count} * kernels::ServedBytes(CheckedCast(cast));
    const auto out = std::make_unique<uint8_t[]>(bytes);
    WithoutGil([&] { table_->gather(live.source(), CheckedCast(cast), at.data, at.count, out.get()); });
    OrThrow(live.memory().Check());
    return ToBytes(out.get(), bytes);
  }

  void Scatter(const MemoryRef& memory, int64_t offset, uint32_t width, const nb::bytes& positions,
               const nb::bytes& bits) const {
    const Positions at(positions);
    const Place live = Of(memory, offset);
    at.CheckIn(live, width);
    if (bits.size() != uint64_t{at.count} * width) {
      throw CoreError(Error(Code::kInvalidArgument, "bits and positions do not have the same length"));
    }
    WithoutGil([&] { table_->scatter(live.target(), width, at.data, at.count, bits.data()); });
    OrThrow(live.memory().Check());
  }

  void Write(const MemoryRef& memory, int64_t offset, uint32_t width, const nb::bytes& bits) const {
    const uint64_t n = bits.size() / width;
    const Place live = At(memory, offset, n, width);
    WithoutGil([&] { table_->write(live.target(), width, CheckedCount(n), bits.data()); });
    OrThrow(live.memory().Check());
  }

  // offset: of theta, in bytes; the moments begin at the same element.
  InvertedTuple InvertAdamw(const MemoryRef& theta, const MemoryRef& m, const MemoryRef& v, int64_t offset,
                            uint64_t n, uint64_t step, const AdamwTuple& hyper, uint64_t canonical,
                            uint64_t key, bool m_is_bf16, bool v_is_bf16) const {
    const auto [lr, weight_decay, beta1, beta2, eps] = hyper;
    const auto band = Holds(kernels::MakeAdamwBand({lr, weight_decay, beta1, beta2, eps, step, true},
                                                   kernels::MomentError(m_is_bf16, v_is_bf16)));
    const auto state = [&](const MemoryRef& memory, bool is_bf16) {
      return is_bf16 ? At(memory, offset / 2, n, 2) : At(memory, offset, n, 4);
    };
    const Place weights = At(theta, offset, n, 4), first = state(m, m_is_bf16), second = state(v, v_is_bf16);
    return Lists(weights, n, [&](uint64_t* lanes, kernels::Inverted* out) {
      table_->invert_adamw(weights.source(), first.source(), second.source(), {m_is_bf16, v_is_bf16}, band,
                           CheckedCount(n), canonical, key, lanes, out);
    });
  }

  InvertedTuple InvertSgd(const MemoryRef& theta, const MemoryRef& x, const std::optional<MemoryRef>& y,
                          int64_t offset, uint64_t n, const SgdTuple& hyper, uint64_t canonical,
                          uint64_t key) const {
    const auto [lr, weight_decay, mu] = hyper;
    const auto band = Holds(kernels::MakeSgdBand({lr, weight_decay, mu}));
    const Place weights = At(theta, offset, n, 4), first = At(x, offset, n, 4);
    const kernels::Source second = y ? At(*y, offset, n, 4).source() : kernels::Source{nullptr, 0};
    return Lists(weights, n, [&](uint64_t* lanes, kernels::Inverted* out) {
      table_->invert_sgd(weights.source(), first.source(), second, band, CheckedCount(n), canonical, key,
                         lanes, out);
    });
  }

  std::pair<nb::bytes, nb::bytes> SelectSmall(const MemoryRef& memory, int64_t offset, int cast,
                                              uint64_t n) const {
    const Place live = At(memory, offset, n, kernels::StoredBytes(CheckedCast(cast)));
    const auto positions = std::make_unique<uint32_t[]>(n);
    const auto bits = std::make_unique<uint16_t[]>(n);
    const uint64_t count = WithoutGil([&] {
      return table_->select_small(live.source(), CheckedCast(cast), CheckedCount(n), positions.get(),
                                  bits.get());
    });
    OrThrow(live.memory().Check());
    return {ToBytes(positions.get(), count * 4), ToBytes(bits.get(), count * 2)};
  }

 private:
  template <class Band>
  static Band Holds(const tl::expected<Band, std::string_view>& band) {
    if (band) return *band;
    throw CoreError(Error(Code::kUnsupported, "inversion does not hold: " + std::string(band.error())));
  }
  // invert(lanes, out): the call, without the GIL.
  template <class F>
  static InvertedTuple Lists(const Place& theta, uint64_t n, F&& invert) {
    const auto changed = std::make_unique<uint32_t[]>(n);
    const auto changed_old = std::make_unique<uint16_t[]>(n);
    const auto uncertain = std::make_unique<uint32_t[]>(n);
    const auto low = std::make_unique<uint16_t[]>(n);
    const auto span = std::make_unique<uint8_t[]>(n);
    kernels::Inverted out{changed.get(), changed_old.get(), uncertain.get(), low.get(), span.get(), 0, 0};
    uint64_t lanes[2] = {0, 0};
    WithoutGil([&] { invert(lanes, &out); });
    OrThrow(theta.memory().Check());
    return {{lanes[0], lanes[1]},
            ToBytes(changed.get(), out.changed_count * uint64_t{4}),
            ToBytes(changed_old.get(), out.changed_count * uint64_t{2}),
            ToBytes(uncertain.get(), out.uncertain_count * uint64_t{4}),
            ToBytes(low.get(), out.uncertain_count * uint64_t{2}),
            ToBytes(span.get(), out.uncertain_count)};
  }
  Place Of(const MemoryRef& memory, int64_t offset) const {
    const bool torch = memory.memory->device() == DeviceKind::kTorch;
    if (torch != (table_ == &TorchTable())) {
      throw CoreError(
          Error(Code::kInvalidArgument, fmt::format("the {} kernels can't reach this memory", table_->name)));
    }
    return {memory, offset};
  }
  Place At(const MemoryRef& memory, int64_t offset, uint64_t n, uint32_t width) const {
    Place place = Of(memory, offset);
    if (CheckedCount(n) != 0) place.Check(0, static_cast<int64_t>(n) - 1, width);
    return place;
  }

  const kernels::Table* table_;
};

}  // namespace

void BindKernels(nb::module_& module) {
  nb::class_<Kernels>(
      module, "Kernels",
      "One kernel table: ref, cpu, or torch. Offsets in bytes; positions as little-endian uint32.")
      .def(nb::init<const std::string&>(), nb::arg("name"))
      .def("digest", &Kernels::Digest, nb::arg("memory"), nb::arg("offset"), nb::arg("cast"), nb::arg("n"),
           nb::arg("canonical"), nb::arg("key"))
      .def("compare", &Kernels::Compare, nb::arg("old_memory"), nb::arg("old_offset"), nb::arg("memory"),
           nb::arg("offset"), nb::arg("cast"), nb::arg("n"))
      .def("read", &Kernels::ReadStrided, nb::arg("memory"), nb::arg("offset"), nb::arg("cast"),
           nb::arg("stride"), nb::arg("n"))
      .def("copy", &Kernels::Copy, nb::arg("memory"), nb::arg("offset"), nb::arg("cast"), nb::arg("n"),
           nb::arg("to_memory"), nb::arg("to_offset"))
      .def("gather", &Kernels::Gather, nb::arg("memory"), nb::arg("offset"), nb::arg("cast"),
           nb::arg("positions"))
      .def("scatter", &Kernels::Scatter, nb::arg("memory"), nb::arg("offset"), nb::arg("width"),
           nb::arg("positions"), nb::arg("bits"))
      .def("write", &Kernels::Write, nb::arg("memory"), nb::arg("offset"), nb::arg("width"), nb::arg("bits"))
      .def("invert_adamw", &Kernels::InvertAdamw, nb::arg("theta"), nb::arg("m"), nb::arg("v"),
           nb::arg("offset"), nb::arg("n"), nb::arg("step"), nb::arg("hyper"), nb::arg("canonical"),
           nb::arg("key"), nb::arg("m_is_bf16") = false, nb::arg("v_is_bf16") = false,
           "lanes, changed, changed_old, uncertain, uncertain_low, uncertain_span")
      .def("invert_sgd", &Kernels::InvertSgd, nb::arg("theta"), nb::arg("x"), nb::arg("y").none(),
           nb::arg("offset"), nb::arg("n"), nb::arg("hyper"), nb::arg("canonical"), nb::arg("key"),
           "lanes, changed, changed_old, uncertain, uncertain_low, uncertain_span")
      .def("select_small", &Kernels::SelectSmall, nb::arg("memory"), nb::arg("offset"), nb::arg("cast"),
           nb::arg("n"));
}

}  // namespace deltawire::python
