#include "codec/test_block.h"

#include <algorithm>
#include <bit>
#include <map>

#include "codec/ordinal.h"

namespace deltawire::codec {
namespace {

double Uniform(Rng& rng) { return static_cast<double>(rng.Next() >> 11) * 0x1p-53; }

template <class U>
U RandomStep(Rng& rng, Steps steps) {
  const double kind = Uniform(rng);
  const bool down = (rng.Next() & 1) != 0;
  U magnitude = 1;
  if (steps == Steps::kSmall && kind < 0.1) magnitude = static_cast<U>(2 + rng.Next() % 60);
  if (steps == Steps::kAny || (steps == Steps::kSmall && kind < 0.005)) {
    magnitude = static_cast<U>(rng.Next());
  }
  return static_cast<U>(down ? U{0} - magnitude : magnitude);
}

template <class U>
TestBlock Generate(Rng& rng, uint32_t elements, double density, double uncertain, Steps steps) {
  TestBlock block;
  block.elements = elements;
  block.width = sizeof(U);
  for (uint32_t i = 0; i < elements; ++i) {
    const double draw = Uniform(rng);
    if (draw >= density + uncertain) continue;
    const U before = static_cast<U>(rng.Next());
    const U after = Ordinal(static_cast<U>(Ordinal(before) + RandomStep<U>(rng, steps)));
    if (draw < density) {
      block.changed.push_back(i);
      AppendLe(before, block.old_bits);
      AppendLe(after, block.new_bits);
      continue;
    }
    block.uncertain.push_back(i);
    const bool neighbours = sizeof(U) == 2 && rng.Next() % 4 != 0;
    block.uncertain_span.push_back(neighbours);
    block.uncertain_low.push_back(neighbours ? static_cast<uint16_t>(before) : 0);
    AppendLe(after, block.uncertain_new);
  }
  return block;
}

}  // namespace

TestBlock RandomBlock(Rng& rng, uint32_t elements, uint32_t width, double density, double uncertain,
                      Steps steps) {
  return WithWidth(
      width, [&](auto zero) { return Generate<decltype(zero)>(rng, elements, density, uncertain, steps); });
}

uint64_t TestBlock::Filler(uint32_t i, uint32_t width) {
  // Small exponents are rare, as in weights.
  const uint64_t noise = (i + uint64_t{1}) * 0x9E3779B97F4A7C15u;
  const auto key = static_cast<uint64_t>(120 - std::countl_zero(noise | 1) % 16);
  if (width == 1) return key >> 1 | (noise & 0x80);
  const unsigned low = 8 * width - 9;
  const uint64_t mask = width == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * width) - 1;
  return (key << low | (noise & ~(uint64_t{0xFF} << low))) & mask;
}

Bytes TestBlock::NewBlock() const {
  Bytes bits(uint64_t{elements} * width);
  for (uint32_t i = 0; i < elements; ++i) {
    const uint64_t value = Filler(i, width);
    std::memcpy(bits.data() + uint64_t{i} * width, &value, width);
  }
  const auto put = [&](std::span<const uint32_t> positions, const Bytes& from) {
    for (size_t i = 0; i < positions.size(); ++i) {
      std::memcpy(bits.data() + uint64_t{positions[i]} * width, from.data() + i * width, width);
    }
  };
  put(changed, new_bits);
  put(uncertain, uncertain_new);
  return bits;
}

Bytes TestBlock::OldBlock(uint16_t above) const {
  Bytes bits = NewBlock();
  for (size_t i = 0; i < changed.size(); ++i) {
    std::memcpy(bits.data() + uint64_t{changed[i]} * width, old_bits.data() + i * width, width);
  }
  for (size_t i = 0; i < uncertain.size(); ++i) {
    uint64_t base = 0;  // span 0: any base will do
    if (uncertain_span[i] != 0) {
      base = Ordinal(static_cast<uint16_t>(Ordinal(uncertain_low[i]) + above));
    }
    std::memcpy(bits.data() + uint64_t{uncertain[i]} * width, &base, width);
  }
  return bits;
}

Part EncodePart(Coding coding, std::span<const TestBlock> blocks) {
  Encoder encoder(coding, &kernels::CpuClassTable());
  std::vector<Bytes> bits;
  for (const TestBlock& block : blocks) {
    bits.push_back(coding == Coding::kClass ? block.NewBlock() : Bytes{});
    if (coding != Coding::kClass || block.elements == 0) continue;
    encoder.SampleBase(block.width, block.elements, bits.back());
    encoder.SampleChanges(block.View());
  }
  if (coding == Coding::kClass) encoder.ChooseClasses(8);
  std::vector<PreparedBlock> prepared(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_TRUE(encoder.Prepare(blocks[i].View(), bits[i], prepared[i]));
    encoder.Survey(prepared[i]);
  }
  encoder.ChooseTables();
  Part part;
  part.tables.assign(encoder.tables().begin(), encoder.tables().end());
  for (size_t i = 0; i < blocks.size(); ++i) {
    Bytes out;
    std::vector<uint32_t> populations;
    const Status status = encoder.Encode(blocks[i].View(), prepared[i], out, populations);
    EXPECT_TRUE(status) << status.error().message();
    part.streams.push_back(std::move(out));
    part.populations.push_back(std::move(populations));
  }
  return part;
}

Result<Decoded> Decode(const Decoder& decoder, Coding coding, const TestBlock& block, ByteSpan stream) {
  return Decode(decoder, coding, block, stream, coding == Coding::kClass ? block.OldBlock(0) : Bytes{});
}

Result<Decoded> Decode(const Decoder& decoder, Coding coding, const TestBlock& block, ByteSpan stream,
                       ByteSpan old_block) {
  DELTAWIRE_ASSIGN(
      const Decoded decoded,
      decoder.Decode(coding, block.elements, block.width, static_cast<uint32_t>(block.changed.size()),
                     static_cast<uint32_t>(block.uncertain.size()), stream));
  return Place(kernels::CpuClassTable(), old_block, {}, decoded);
}

void ExpectDecodes(Coding coding, const TestBlock& block, const Decoded& decoded) {
  EXPECT_EQ(decoded.width, block.width);
  EXPECT_EQ(decoded.steps, coding != Coding::kAbsolute);
  EXPECT_FALSE(decoded.ranked);
  if (coding == Coding::kAbsolute) {
    std::map<uint32_t, Bytes> expected;
    const auto add = [&](std::span<const uint32_t> positions, const Bytes& bits) {
      for (size_t i = 0; i < positions.size(); ++i) {
        const auto from = bits.begin() + static_cast<ptrdiff_t>(i * block.width);
        expected[positions[i]] = Bytes(from, from + block.width);
      }
    };
    add(block.changed, block.new_bits);
    add(block.uncertain, block.uncertain_new);
    std::vector<uint32_t> positions;
    Bytes bits;
    for (const auto& [position, value] : expected) {
      positions.push_back(position);
      bits.insert(bits.end(), value.begin(), value.end());
    }
    EXPECT_EQ(decoded.changed, positions);
    EXPECT_EQ(decoded.values, bits);
    EXPECT_TRUE(decoded.uncertain.empty());
    return;
  }
  EXPECT_EQ(decoded.changed, block.changed);
  EXPECT_EQ(decoded.uncertain, block.uncertain);
  for (const uint16_t above : {0, 1}) {
    Bytes base(block.uncertain.size() * block.width);
    for (size_t i = 0; i < block.uncertain.size(); ++i) {
      if (block.uncertain_span[i] == 0) continue;  // any base will do: zeros
      const auto candidate = static_cast<uint16_t>(Ordinal(block.uncertain_low[i]) + above);
      StoreLe(Ordinal(candidate), base.data() + 2 * i);
    }
    Bytes new_changed(block.new_bits.size());
    Bytes new_uncertain(block.uncertain_new.size());
    Resolve(decoded, block.old_bits, base, new_changed, new_uncertain);
    EXPECT_EQ(new_changed, block.new_bits);
    EXPECT_EQ(new_uncertain, block.uncertain_new);
  }
}

}  // namespace deltawire::codec
