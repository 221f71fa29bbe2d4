#include "bench/peers/sparse_peers.h"

#include <algorithm>
#include <limits>

#include "bench/peers/sections.h"
#include "bench/peers/zstd_context.h"

namespace deltawire::bench {
namespace {

template <class T>
void Put(const uint8_t* value, uint64_t position, MutableByteSpan bits) {
  StoreLe(LoadLe<T>(value), bits.data() + position * sizeof(T));
}

class Raw final : public Peer {
 public:
  std::string_view name() const override { return "raw_i32"; }
  void Encode(const TensorPair& pair, Bytes& out) override {
    out.clear();
    AppendSection({reinterpret_cast<const uint8_t*>(pair.changed.data()), pair.changed.size_bytes()}, out);
    Values(pair.now, pair.changed, pair.width, values_);
    AppendSection(values_, out);
  }
  void Apply(ByteSpan bytes, uint32_t width, uint64_t, MutableByteSpan bits) override {
    const ByteSpan positions = TakeSection(bytes);
    const ByteSpan values = TakeSection(bytes);
    WithElement(width, [&](auto zero) {
      using T = decltype(zero);
      for (size_t i = 0; i < positions.size() / 4; ++i) {
        Put<T>(values.data() + i * sizeof(T), LoadLe<uint32_t>(positions.data() + 4 * i), bits);
      }
    });
  }

 private:
  Bytes values_;
};

class Gap final : public Peer {
 public:
  std::string_view name() const override { return "gap"; }
  void Encode(const TensorPair& pair, Bytes& out) override {
    out.clear();
    GapBytes(pair.changed, gaps_);
    Values(pair.now, pair.changed, pair.width, values_);
    AppendSection(gaps_, out);
    AppendSection(values_, out);
  }
  void Apply(ByteSpan bytes, uint32_t width, uint64_t, MutableByteSpan bits) override {
    const ByteSpan gaps = TakeSection(bytes);
    const ByteSpan values = TakeSection(bytes);
    WithElement(width, [&](auto zero) {
      using T = decltype(zero);
      ForEachGap(gaps,
                 [&](size_t i, uint64_t position) { Put<T>(values.data() + i * sizeof(T), position, bits); });
    });
  }

 private:
  Bytes gaps_;
  Bytes values_;
};

class GapZstd final : public Peer {
 public:
  explicit GapZstd(bool xor_values) : xor_values_(xor_values) {}

  std::string_view name() const override { return xor_values_ ? "gap_xor_zstd1" : "gap_value_zstd1"; }
  void Encode(const TensorPair& pair, Bytes& out) override {
    GapBytes(pair.changed, gaps_);
    if (xor_values_) {
      XorValues(pair.base, pair.now, pair.changed, pair.width, values_);
    } else {
      Values(pair.now, pair.changed, pair.width, values_);
    }
    out.clear();
    for (const Bytes* section : {&gaps_, &values_}) {
      frame_.clear();
      zstd_.Compress(*section, 1, frame_);
      AppendSection(frame_, out);
    }
  }
  void Apply(ByteSpan bytes, uint32_t width, uint64_t, MutableByteSpan bits) override {
    for (Bytes* section : {&gaps_, &values_}) {
      const ByteSpan frame = TakeSection(bytes);
      section->resize(ZstdContext::ContentSize(frame));
      zstd_.Decompress(frame, *section);
    }
    WithElement(width, [&](auto zero) {
      using T = decltype(zero);
      const auto value = [&](size_t i) { return LoadLe<T>(values_.data() + i * sizeof(T)); };
      ForEachGap(gaps_, [&](size_t i, uint64_t position) {
        uint8_t* at = bits.data() + position * sizeof(T);
        StoreLe(xor_values_ ? static_cast<T>(LoadLe<T>(at) ^ value(i)) : value(i), at);
      });
    });
  }

 private:
  bool xor_values_;
  ZstdContext zstd_;
  Bytes gaps_;
  Bytes values_;
  Bytes frame_;
};

// The narrowest of u8 (rows only), u16 and u32 for all numbers of a list.
uint8_t WidthOf(const std::vector<uint32_t>& numbers, uint8_t narrowest) {
  const uint32_t largest = numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end());
  if (narrowest == 1 && largest <= std::numeric_limits<uint8_t>::max()) return 1;
  return largest <= std::numeric_limits<uint16_t>::max() ? 2 : 4;
}

void AppendNumbers(const std::vector<uint32_t>& numbers, uint8_t width, Bytes& out) {
  const size_t at = out.size();
  out.resize(at + numbers.size() * width);
  WithElement(width, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < numbers.size(); ++i) {
      StoreLe(static_cast<T>(numbers[i]), out.data() + at + i * sizeof(T));
    }
  });
}

uint32_t NumberAt(const uint8_t* numbers, uint8_t width, size_t i) {
  if (width == 1) return numbers[i];
  return width == 2 ? LoadLe<uint16_t>(numbers + 2 * i) : LoadLe<uint32_t>(numbers + 4 * i);
}

class CooZstd final : public Peer {
 public:
  std::string_view name() const override { return "coo_zstd1"; }
  void Encode(const TensorPair& pair, Bytes& out) override {
    const size_t count = pair.changed.size();
    rows_.resize(count);
    columns_.resize(count);
    uint32_t row = 0;
    uint32_t column = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto r = static_cast<uint32_t>(pair.changed[i] / pair.row);
      const auto c = static_cast<uint32_t>(pair.changed[i] % pair.row);
      rows_[i] = r - row;
      columns_[i] = i > 0 && r == row ? c - column : c;
      row = r;
      column = c;
    }
    const uint8_t row_width = WidthOf(rows_, 1);
    const uint8_t column_width = WidthOf(columns_, 2);
    plain_.clear();
    AppendLe<uint64_t>(count, plain_);
    plain_.push_back(row_width);
    plain_.push_back(column_width);
    AppendNumbers(rows_, row_width, plain_);
    AppendNumbers(columns_, column_width, plain_);
    Values(pair.now, pair.changed, pair.width, values_);
    plain_.insert(plain_.end(), values_.begin(), values_.end());
    out.clear();
    zstd_.Compress(plain_, 1, out);
  }
  void Apply(ByteSpan bytes, uint32_t width, uint64_t row_elements, MutableByteSpan bits) override {
    plain_.resize(ZstdContext::ContentSize(bytes));
    zstd_.Decompress(bytes, plain_);
    const uint64_t count = LoadLe<uint64_t>(plain_.data());
    const uint8_t row_width = plain_[8];
    const uint8_t column_width = plain_[9];
    const uint8_t* rows = plain_.data() + 10;
    const uint8_t* columns = rows + count * row_width;
    const uint8_t* values = columns + count * column_width;
    WithElement(width, [&](auto zero) {
      using T = decltype(zero);
      uint64_t row = 0;
      uint64_t column = 0;
      for (size_t i = 0; i < count; ++i) {
        const uint32_t step = NumberAt(rows, row_width, i);
        const uint32_t c = NumberAt(columns, column_width, i);
        column = i > 0 && step == 0 ? column + c : c;
        row += step;
        Put<T>(values + i * sizeof(T), row * row_elements + column, bits);
      }
    });
  }

 private:
  ZstdContext zstd_;
  std::vector<uint32_t> rows_;
  std::vector<uint32_t> columns_;
  Bytes values_;
  Bytes plain_;
};

}  // namespace

std::unique_ptr<Peer> RawPeer() { return std::make_unique<Raw>(); }
std::unique_ptr<Peer> GapPeer() { return std::make_unique<Gap>(); }
std::unique_ptr<Peer> GapZstdPeer(bool xor_values) { return std::make_unique<GapZstd>(xor_values); }
std::unique_ptr<Peer> CooZstdPeer() { return std::make_unique<CooZstd>(); }

}  // namespace deltawire::bench
