#include "python/torch_table.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include "python/torch_memory.h"

namespace deltawire::python {

namespace nb = nanobind;

namespace {

using kernels::AdamwBand;
using kernels::Cast;
using kernels::Inverted;
using kernels::Source;
using kernels::Target;

const TorchMemory& MemoryOf(Source at) { return *static_cast<const TorchMemory*>(at.base); }
const TorchMemory& MemoryOf(Target at) { return *static_cast<const TorchMemory*>(at.base); }

// Offsets wrap modulo 2^64 where a base stands before its memory; Python sees them signed.
int64_t Signed(uint64_t offset) { return static_cast<int64_t>(offset); }

// PyBUF_WRITE, which the headers of the stable ABI have from Python 3.11 on.
constexpr int kWritable = 0x200;

// A host array as a Python argument. It must be writable for torch.frombuffer; inputs are only read.
nb::object Array(const void* data, uint64_t size_bytes) {
  return nb::steal(PyMemoryView_FromMemory(static_cast<char*>(const_cast<void*>(data)),
                                           static_cast<Py_ssize_t>(size_bytes), kWritable));
}

void Digest(Source live, Cast cast, uint32_t n, uint64_t canonical, uint64_t key, uint64_t lanes[2]) {
  if (n == 0) return;
  nb::gil_scoped_acquire gil;
  const auto sum = MemoryOf(live).Call("digest", std::pair<uint64_t, uint64_t>{0, 0}, Signed(live.offset),
                                       static_cast<int>(cast), n, canonical, key);
  lanes[0] += sum.first;
  lanes[1] += sum.second;
}

uint32_t Compare(Source old, Source live, Cast cast, uint32_t n, uint32_t* pos, void* old_bits,
                 void* new_bits) {
  if (n == 0) return 0;
  nb::gil_scoped_acquire gil;
  const uint64_t served = kernels::ServedBytes(cast);
  return MemoryOf(live).Call("compare", uint32_t{0}, MemoryOf(old).storage(), Signed(old.offset),
                             Signed(live.offset), static_cast<int>(cast), n, Array(pos, uint64_t{n} * 4),
                             Array(old_bits, n * served), Array(new_bits, n * served));
}

void Read(Source live, Cast cast, uint32_t n, void* out) {
  if (n == 0) return;
  nb::gil_scoped_acquire gil;
  MemoryOf(live).Call("read", 0, Signed(live.offset), static_cast<int>(cast), n,
                      Array(out, uint64_t{n} * kernels::ServedBytes(cast)));
}

void Copy(Source live, Cast cast, uint32_t n, Target served) {
  if (n == 0) return;
  nb::gil_scoped_acquire gil;
  MemoryOf(live).Call("copy", 0, Signed(live.offset), static_cast<int>(cast), n, MemoryOf(served).storage(),
                      Signed(served.offset));
}

void ReadStrided(Source live, Cast cast, int64_t stride, uint32_t n, void* out) {
  if (n == 0) return;
  nb::gil_scoped_acquire gil;
  MemoryOf(live).Call("read_strided", 0, Signed(live.offset), static_cast<int>(cast), stride, n,
                      Array(out, uint64_t{n} * kernels::ServedBytes(cast)));
}

void Gather(Source live, Cast cast, const uint32_t* pos, uint32_t k, void* out) {
  if (k == 0) return;
  nb::gil_scoped_acquire gil;
  MemoryOf(live).Call("gather", 0, Signed(live.offset), static_cast<int>(cast), Array(pos, uint64_t{k} * 4),
                      Array(out, uint64_t{k} * kernels::ServedBytes(cast)));
}

void Scatter(Target live, uint32_t width, const uint32_t* pos, uint32_t k, const void* bits) {
  if (k == 0) return;
  nb::gil_scoped_acquire gil;
  MemoryOf(live).Call("scatter", 0, Signed(live.offset), width, Array(pos, uint64_t{k} * 4),
                      Array(bits, uint64_t{k} * width));
}

void Write(Target live, uint32_t width, uint32_t n, const void* bits) {
  if (n == 0) return;
  nb::gil_scoped_acquire gil;
  MemoryOf(live).Call("write", 0, Signed(live.offset), width, Array(bits, uint64_t{n} * width));
}

void InvertAdamw(Source theta, Source m, Source v, kernels::Moments stored, const AdamwBand& band, uint32_t n,
                 uint64_t canonical, uint64_t key, uint64_t lanes[2], Inverted* out) {
  out->changed_count = 0;
  out->uncertain_count = 0;
  if (n == 0) return;
  if (lanes != nullptr) Digest(theta, Cast::kF32ToBf16, n, canonical, key, lanes);
  nb::gil_scoped_acquire gil;
  const nb::object constants = nb::make_tuple(band.k1, band.k2, band.s, band.r, band.eps, band.a, band.b,
                                              band.c, band.tiny_eps, band.idle_stays);
  const uint64_t words = uint64_t{n} * 4, halves = uint64_t{n} * 2;
  const auto counts = MemoryOf(theta).Call(
      "invert_adamw", std::pair<uint32_t, uint32_t>{0, 0}, Signed(theta.offset), MemoryOf(m).storage(),
      Signed(m.offset), stored.m_is_bf16, MemoryOf(v).storage(), Signed(v.offset), stored.v_is_bf16,
      constants, n, Array(out->changed, words), Array(out->changed_old, halves), Array(out->uncertain, words),
      Array(out->uncertain_low, halves), Array(out->uncertain_span, n));
  out->changed_count = counts.first;
  out->uncertain_count = counts.second;
}

void InvertSgd(Source theta, Source x, Source y, const kernels::SgdBand& band, uint32_t n, uint64_t canonical,
               uint64_t key, uint64_t lanes[2], Inverted* out) {
  out->changed_count = 0;
  out->uncertain_count = 0;
  if (n == 0) return;
  if (lanes != nullptr) Digest(theta, Cast::kF32ToBf16, n, canonical, key, lanes);
  nb::gil_scoped_acquire gil;
  const nb::object constants = nb::make_tuple(band.k1, band.k2, band.s, band.mu, band.a, band.b, band.c);
  const nb::object other = y.base == nullptr ? nb::none() : MemoryOf(y).storage();
  const uint64_t words = uint64_t{n} * 4, halves = uint64_t{n} * 2;
  const auto counts = MemoryOf(theta).Call("invert_sgd", std::pair<uint32_t, uint32_t>{0, 0},
                                           Signed(theta.offset), MemoryOf(x).storage(), Signed(x.offset),
                                           other, Signed(y.offset), constants, n, Array(out->changed, words),
                                           Array(out->changed_old, halves), Array(out->uncertain, words),
                                           Array(out->uncertain_low, halves), Array(out->uncertain_span, n));
  out->changed_count = counts.first;
  out->uncertain_count = counts.second;
}

uint32_t SelectSmall(Source live, Cast cast, uint32_t n, uint32_t* pos, uint16_t* bits) {
  if (n == 0) return 0;
  nb::gil_scoped_acquire gil;
  return MemoryOf(live).Call("select_small", uint32_t{0}, Signed(live.offset), static_cast<int>(cast), n,
                             Array(pos, uint64_t{n} * 4), Array(bits, uint64_t{n} * 2));
}

constexpr kernels::Table kTable = {
    .name = "torch",
    .digest = Digest,
    .compare = Compare,
    .read = Read,
    .copy = Copy,
    .read_strided = ReadStrided,
    .gather = Gather,
    .scatter = Scatter,
    .write = Write,
    .invert_adamw = InvertAdamw,
    .invert_sgd = InvertSgd,
    .select_small = SelectSmall,
};

}  // namespace

const kernels::Table& TorchTable() { return kTable; }

}  // namespace deltawire::python
