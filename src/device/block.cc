#include "device/block.h"

#include <algorithm>
#include <memory>

namespace deltawire::device {

using kernels::Cast;
using kernels::Source;
using kernels::Target;

namespace {

// Elements that a call with result lists is given at once. Lists must have room for every element; room for a
// whole block would be mapped afresh by every call and its pages cleared by the kernel, which costs as much
// as the comparison.
constexpr uint32_t kListedAtOnce = 1u << 12;

// On other devices a call has a price of its own, and lists are on the host whatever their length.
uint32_t ListedAtOnce(const Memory& memory) {
  return memory.device() == DeviceKind::kHost ? kListedAtOnce : kernels::kMaxElements;
}

// Calls f(first, count) for consecutive pieces of n elements.
template <class F>
void InPieces(uint32_t n, uint32_t piece, F&& f) {
  for (uint32_t first = 0; first < n; first += piece) f(first, std::min(piece, n - first));
}

// Uninitialised.
template <class T>
std::unique_ptr<T[]> Room(uint64_t count) {
  return std::make_unique_for_overwrite<T[]>(count);
}

template <class T>
void Append(std::vector<T>& to, const T* from, uint64_t count) {
  to.insert(to.end(), from, from + count);
}

// How many entries to reserve when `found` of the first `seen` of n elements are in a list: once instead of
// growing by copies. Room that stays empty is never touched.
uint64_t Expected(uint64_t found, uint64_t seen, uint64_t n) {
  return std::min(n, found * n / seen * 5 / 4 + 64);
}

}  // namespace

Block::Block(const Backends& backends, const TensorView& view, const Box& box, Cast cast, uint64_t key)
    : table_(backends.For(*view.memory)),
      host_ops_(*backends.host_ops),
      backends_(backends),
      view_(view),
      box_(box),
      cast_(cast),
      key_(key),
      elements_(static_cast<uint32_t>(ElementCount(box))) {
  const std::vector<int64_t> canonical = RowMajorStrides(view.shape);
  int64_t memory = 0;
  first_canonical_ = 0;
  for (size_t d = 0; d < box.start.size(); ++d) {
    memory += static_cast<int64_t>(box.start[d]) * view.strides[d];
    first_canonical_ += box.start[d] * static_cast<uint64_t>(canonical[d]);
  }
  first_memory_byte_ = view.offset_bytes + static_cast<uint64_t>(memory) * kernels::StoredBytes(cast);

  // A run takes in the next outer dimension while its elements follow each other both canonically and in
  // memory.
  uint64_t length = 1;
  int64_t stride = 1;
  size_t d = box.size.size();
  bool first = true;
  while (d > 0) {
    const uint64_t extent = box.size[d - 1];
    if (extent != 1) {
      const bool adjacent = first || (static_cast<uint64_t>(canonical[d - 1]) == length &&
                                      view.strides[d - 1] == stride * static_cast<int64_t>(length));
      if (!adjacent) break;
      if (first) {
        // The innermost dimension that varies may itself be apart canonically (a column of a matrix).
        if (canonical[d - 1] != 1) break;
        stride = view.strides[d - 1];
        first = false;
      }
      length *= extent;
    }
    --d;
  }
  for (size_t outer = 0; outer < d; ++outer) {
    if (box.size[outer] == 1) continue;
    outer_.push_back({box.size[outer], static_cast<uint64_t>(canonical[outer]), view.strides[outer]});
  }
  run_length_ = elements_ == 0 ? 0 : static_cast<uint32_t>(length);
  run_stride_ = stride;
}

template <class F>
void Block::ForEachRun(F&& f) const {
  if (elements_ == 0) return;
  const uint32_t runs = elements_ / run_length_;
  std::vector<uint64_t> at(outer_.size(), 0);
  Run run{first_memory_byte_, first_canonical_, 0};
  const auto width = static_cast<int64_t>(kernels::StoredBytes(cast_));
  for (uint32_t i = 0; i < runs; ++i) {
    f(run);
    run.position += run_length_;
    for (size_t d = outer_.size(); d-- > 0;) {
      run.memory_byte += static_cast<uint64_t>(outer_[d].memory_stride * width);
      run.canonical += outer_[d].canonical_stride;
      if (++at[d] < outer_[d].extent) break;
      run.memory_byte -= static_cast<uint64_t>(outer_[d].memory_stride * width * static_cast<int64_t>(at[d]));
      run.canonical -= outer_[d].canonical_stride * at[d];
      at[d] = 0;
    }
  }
}

template <class F>
void Block::ForEachRunOf(std::span<const uint32_t> positions, F&& f) const {
  size_t first = 0;
  ForEachRun([&](const Run& run) {
    size_t end = first;
    if (run.position + run_length_ == elements_) {
      end = positions.size();
    } else {
      while (end < positions.size() && positions[end] < run.position + run_length_) ++end;
    }
    if (end > first) f(run, first, end - first);
    first = end;
  });
}

void Block::Read(MutableByteSpan out) const {
  ForEachRun([&](const Run& run) {
    const Source live{view_.memory->handle(), run.memory_byte};
    uint8_t* to = out.data() + uint64_t{run.position} * served_width();
    if (run_stride_ == 1) {
      table_.read(live, cast_, run_length_, to);
    } else {
      table_.read_strided(live, cast_, run_stride_, run_length_, to);
    }
  });
}

Digest Block::DigestNow() const {
  Digest digest;
  if (run_stride_ == 1) {
    ForEachRun([&](const Run& run) {
      table_.digest({view_.memory->handle(), run.memory_byte}, cast_, run_length_,
                    run.canonical * served_width(), key_, digest.lanes);
    });
    return digest;
  }
  Bytes bits(uint64_t{elements_} * served_width());
  Read(bits);
  return DigestOf(bits);
}

Digest Block::DigestOf(ByteSpan bits) const {
  Digest digest;
  ForEachRun([&](const Run& run) {
    backends_.host->digest({bits.data(), uint64_t{run.position} * served_width()},
                           CastOfWidth(served_width()), run_length_, run.canonical * served_width(), key_,
                           digest.lanes);
  });
  return digest;
}

void Block::CopyTo(const Memory& to, uint64_t offset) const {
  if (run_stride_ == 1) {
    ForEachRun([&](const Run& run) {
      table_.copy({view_.memory->handle(), run.memory_byte}, cast_, run_length_,
                  {to.handle(), offset + uint64_t{run.position} * served_width()});
    });
    return;
  }
  Bytes bits(uint64_t{elements_} * served_width());
  Read(bits);
  table_.write({to.handle(), offset}, served_width(), elements_, bits.data());
}

std::optional<uint64_t> Block::dense_at() const {
  if (!outer_.empty() || run_stride_ != 1) return std::nullopt;
  return first_memory_byte_;
}

ByteSpan Block::HostBits() const {
  const auto at = dense_at();
  if (!at || view_.memory->device() != DeviceKind::kHost || cast_ != CastOfWidth(served_width())) return {};
  return {static_cast<const uint8_t*>(view_.memory->handle()) + *at, uint64_t{elements_} * served_width()};
}

void Block::Compare(const Memory& old, uint64_t offset, std::vector<uint32_t>& positions, Bytes& old_bits,
                    Bytes& new_bits) const {
  const uint32_t width = served_width();
  const uint32_t room = std::min(elements_, ListedAtOnce(*view_.memory));
  const auto found_at = Room<uint32_t>(room);
  const auto was_bits = Room<uint8_t>(uint64_t{room} * width);
  const auto now_bits = Room<uint8_t>(uint64_t{room} * width);
  positions.clear();
  old_bits.clear();
  new_bits.clear();
  const auto compare = [&](const kernels::Table& table, Source was, Source now, Cast cast, uint32_t n,
                           uint32_t position) {
    InPieces(n, room, [&](uint32_t first, uint32_t count) {
      const uint32_t found =
          table.compare({was.base, was.offset + uint64_t{first} * width},
                        {now.base, now.offset + uint64_t{first} * kernels::StoredBytes(cast)}, cast, count,
                        found_at.get(), was_bits.get(), now_bits.get());
      for (uint32_t i = 0; i < found; ++i) found_at[i] += position + first;
      if (positions.empty() && found > 0) {
        const uint64_t expected = Expected(found, position + first + count, elements_);
        positions.reserve(expected);
        old_bits.reserve(expected * width);
        new_bits.reserve(expected * width);
      }
      Append(positions, found_at.get(), found);
      Append(old_bits, was_bits.get(), uint64_t{found} * width);
      Append(new_bits, now_bits.get(), uint64_t{found} * width);
    });
  };
  if (run_stride_ == 1) {
    ForEachRun([&](const Run& run) {
      compare(table_, {old.handle(), offset + uint64_t{run.position} * width},
              {view_.memory->handle(), run.memory_byte}, cast_, run_length_, run.position);
    });
  } else {
    // Strided tensors are rare and small: both sides are brought to the host.
    const Cast plain = CastOfWidth(width);
    Bytes now(uint64_t{elements_} * width);
    Bytes was(now.size());
    Read(now);
    table_.read({old.handle(), offset}, plain, elements_, was.data());
    compare(*backends_.host, {was.data(), 0}, {now.data(), 0}, plain, elements_, 0);
  }
}

void Block::Gather(std::span<const uint32_t> positions, MutableByteSpan out) const {
  const uint32_t width = served_width();
  const uint64_t stored = kernels::StoredBytes(cast_);
  ForEachRunOf(positions, [&](const Run& run, size_t first, size_t count) {
    if (run_stride_ == 1) {
      // Positions stay relative to the block; the base moves instead (and may wrap: only sums are used).
      table_.gather({view_.memory->handle(), run.memory_byte - run.position * stored}, cast_,
                    positions.data() + first, static_cast<uint32_t>(count), out.data() + first * width);
      return;
    }
    for (size_t i = first; i < first + count; ++i) {
      const int64_t element = run_stride_ * static_cast<int64_t>(positions[i] - run.position);
      table_.read({view_.memory->handle(), run.memory_byte + static_cast<uint64_t>(element) * stored}, cast_,
                  1, out.data() + i * width);
    }
  });
}

void Block::SelectSmall(std::vector<uint32_t>& positions, std::vector<uint16_t>& bits) const {
  positions.clear();
  bits.clear();
  const uint32_t room = std::min(run_length_, ListedAtOnce(*view_.memory));
  const auto found = Room<uint32_t>(room);
  const auto found_bits = Room<uint16_t>(room);
  const auto select = [&](const kernels::Table& table, Source live, Cast cast, uint32_t n,
                          uint32_t position) {
    InPieces(n, room, [&](uint32_t first, uint32_t length) {
      const uint32_t count =
          table.select_small({live.base, live.offset + uint64_t{first} * kernels::StoredBytes(cast)}, cast,
                             length, found.get(), found_bits.get());
      for (uint32_t i = 0; i < count; ++i) positions.push_back(found[i] + position + first);
      Append(bits, found_bits.get(), count);
    });
  };
  if (run_stride_ == 1) {
    ForEachRun([&](const Run& run) {
      select(table_, {view_.memory->handle(), run.memory_byte}, cast_, run_length_, run.position);
    });
    return;
  }
  Bytes all(uint64_t{elements_} * served_width());
  Read(all);
  ForEachRun([&](const Run& run) {
    select(*backends_.host, {all.data(), uint64_t{run.position} * served_width()}, Cast::kBits16, run_length_,
           run.position);
  });
}

Inversion Block::Invert(const TensorView& first, const TensorView* second,
                        const std::function<InvertRun>& invert_run, Digest* digest) const {
  const uint32_t room = std::min(elements_, ListedAtOnce(*view_.memory));
  const auto changed = Room<uint32_t>(room);
  const auto changed_old = Room<uint16_t>(room);
  const auto uncertain = Room<uint32_t>(room);
  const auto uncertain_low = Room<uint16_t>(room);
  const auto uncertain_span = Room<uint8_t>(room);
  Inversion out;
  const auto in_pieces = [&](const kernels::Table& table, Source theta, Source state1, Source state2,
                             uint64_t canonical, uint64_t lanes[2]) {
    InPieces(elements_, room, [&](uint32_t start, uint32_t count) {
      kernels::Inverted lists{
          changed.get(), changed_old.get(), uncertain.get(), uncertain_low.get(), uncertain_span.get(), 0, 0};
      const auto at = [start](Source source, uint64_t width) {
        return Source{source.base, source.offset + start * width};
      };
      invert_run(table, at(theta, sizeof(float)), at(state1, DtypeBytes(first.dtype)),
                 second ? at(state2, DtypeBytes(second->dtype)) : Source{nullptr, 0}, count,
                 canonical + uint64_t{start} * served_width(), key_, lanes, &lists);
      for (uint32_t i = 0; i < lists.changed_count; ++i) changed[i] += start;
      for (uint32_t i = 0; i < lists.uncertain_count; ++i) uncertain[i] += start;
      if (out.changed.empty() && lists.changed_count > 0) {
        const uint64_t expected = Expected(lists.changed_count, start + count, elements_);
        out.changed.reserve(expected);
        out.changed_old.reserve(expected);
      }
      Append(out.changed, changed.get(), lists.changed_count);
      Append(out.changed_old, changed_old.get(), lists.changed_count);
      Append(out.uncertain, uncertain.get(), lists.uncertain_count);
      Append(out.uncertain_low, uncertain_low.get(), lists.uncertain_count);
      Append(out.uncertain_span, uncertain_span.get(), lists.uncertain_count);
    });
  };
  const auto block_of = [this](const TensorView& view) {
    return Block(backends_, view, box_, CastOfWidth(DtypeBytes(view.dtype)), key_);
  };
  const auto one_run = [this](const Block& block) {
    return block.run_length_ == elements_ && block.run_stride_ == 1;
  };
  const Block block1 = block_of(first);
  const Block block2 = block_of(second ? *second : first);
  if (digest != nullptr) *digest = {};
  if (one_run(*this) && one_run(block1) && one_run(block2)) {
    in_pieces(table_, {view_.memory->handle(), first_memory_byte_},
              {first.memory->handle(), block1.first_memory_byte_},
              {block2.view_.memory->handle(), block2.first_memory_byte_}, first_canonical_ * served_width(),
              digest ? digest->lanes : nullptr);
    return out;
  }
  const auto stage = [this](const Block& block) {
    Bytes staged(uint64_t{elements_} * block.served_width());
    block.Read(staged);
    return staged;
  };
  const Bytes theta = stage(block_of(view_));
  const Bytes staged1 = stage(block1);
  const Bytes staged2 = second ? stage(block2) : Bytes();
  in_pieces(*backends_.host, {theta.data(), 0}, {staged1.data(), 0}, {staged2.data(), 0}, 0, nullptr);
  if (digest != nullptr) *digest = DigestNow();  // the staged block is not at its canonical place
  return out;
}

Inversion Block::InvertAdamw(const TensorView& m, const TensorView& v, const kernels::AdamwBand& band,
                             Digest* digest) const {
  const kernels::Moments stored{m.dtype == Dtype::kBf16, v.dtype == Dtype::kBf16};
  return Invert(
      m, &v,
      [&](const kernels::Table& table, Source theta, Source m_at, Source v_at, uint32_t n, uint64_t canonical,
          uint64_t key, uint64_t lanes[2], kernels::Inverted* out) {
        table.invert_adamw(theta, m_at, v_at, stored, band, n, canonical, key, lanes, out);
      },
      digest);
}

Inversion Block::InvertSgd(const TensorView& x, const TensorView* y, const kernels::SgdBand& band,
                           Digest* digest) const {
  return Invert(
      x, y,
      [&](const kernels::Table& table, Source theta, Source x_at, Source y_at, uint32_t n, uint64_t canonical,
          uint64_t key, uint64_t lanes[2], kernels::Inverted* out) {
        table.invert_sgd(theta, x_at, y_at, band, n, canonical, key, lanes, out);
      },
      digest);
}

Digest Block::DigestOfChange(std::span<const uint32_t> positions, ByteSpan old_bits,
                             ByteSpan new_bits) const {
  Digest digest;
  const uint64_t width = served_width();
  ForEachRunOf(positions, [&](const Run& run, size_t first, size_t count) {
    host_ops_.digest_changes(key_, (run.canonical - run.position) * width, served_width(),
                             positions.data() + first, static_cast<uint32_t>(count),
                             old_bits.data() + first * width, new_bits.data() + first * width, digest.lanes);
  });
  return digest;
}

void Block::Scatter(std::span<const uint32_t> positions, ByteSpan bits) const {
  const uint32_t width = served_width();
  ForEachRunOf(positions, [&](const Run& run, size_t first, size_t count) {
    if (run_stride_ == 1) {
      table_.scatter({view_.memory->handle(), run.memory_byte - uint64_t{run.position} * width}, width,
                     positions.data() + first, static_cast<uint32_t>(count), bits.data() + first * width);
      return;
    }
    for (size_t i = first; i < first + count; ++i) {
      const int64_t element = run_stride_ * static_cast<int64_t>(positions[i] - run.position);
      table_.write({view_.memory->handle(), run.memory_byte + static_cast<uint64_t>(element) * width}, width,
                   1, bits.data() + i * width);
    }
  });
}

void Block::Write(ByteSpan bits) const {
  const uint32_t width = served_width();
  ForEachRun([&](const Run& run) {
    if (run_stride_ == 1) {
      table_.write({view_.memory->handle(), run.memory_byte}, width, run_length_,
                   bits.data() + uint64_t{run.position} * width);
      return;
    }
    for (uint32_t i = 0; i < run_length_; ++i) {
      const auto step = static_cast<uint64_t>(run_stride_ * static_cast<int64_t>(i)) * width;
      table_.write({view_.memory->handle(), run.memory_byte + step}, width, 1,
                   bits.data() + (uint64_t{run.position} + i) * width);
    }
  });
}

}  // namespace deltawire::device
