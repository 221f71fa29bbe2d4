// The loops that define every result of Table.
#include "kernels/element.h"
#include "kernels/kernels.h"

namespace deltawire::kernels {
namespace {

void Digest(Source live, Cast cast, uint32_t n, uint64_t canonical, uint64_t key, uint64_t lanes[2]) {
  const uint64_t stored = StoredBytes(cast), served = ServedBytes(cast);
  for (uint64_t i = 0; i < n; ++i) {
    DigestElement(key, canonical + i * served, ServedBits(Address(live) + i * stored, cast), lanes);
  }
}

uint32_t Compare(Source old, Source live, Cast cast, uint32_t n, uint32_t* pos, void* old_bits,
                 void* new_bits) {
  const uint32_t stored = StoredBytes(cast), served = ServedBytes(cast);
  uint32_t count = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t before = LoadBits(Address(old) + i * served, served);
    const uint64_t after = ServedBits(Address(live) + i * stored, cast);
    if (before == after) continue;
    StoreBits(static_cast<uint8_t*>(old_bits) + uint64_t{count} * served, served, before);
    StoreBits(static_cast<uint8_t*>(new_bits) + uint64_t{count} * served, served, after);
    pos[count++] = static_cast<uint32_t>(i);
  }
  return count;
}

void ReadStrided(Source live, Cast cast, int64_t stride, uint32_t n, void* out) {
  const uint32_t served = ServedBytes(cast);
  const int64_t step = stride * static_cast<int64_t>(StoredBytes(cast));
  for (int64_t i = 0; i < n; ++i) {
    StoreBits(static_cast<uint8_t*>(out) + i * served, served, ServedBits(Address(live) + i * step, cast));
  }
}

void Read(Source live, Cast cast, uint32_t n, void* out) { ReadStrided(live, cast, 1, n, out); }

void Copy(Source live, Cast cast, uint32_t n, Target served) {
  ReadStrided(live, cast, 1, n, Address(served));
}

void Gather(Source live, Cast cast, const uint32_t* pos, uint32_t k, void* out) {
  const uint64_t stored = StoredBytes(cast), served = ServedBytes(cast);
  for (uint64_t i = 0; i < k; ++i) {
    StoreBits(static_cast<uint8_t*>(out) + i * served, ServedBytes(cast),
              ServedBits(Address(live) + pos[i] * stored, cast));
  }
}

void Scatter(Target live, uint32_t width, const uint32_t* pos, uint32_t k, const void* bits) {
  for (uint64_t i = 0; i < k; ++i) {
    std::memcpy(Address(live) + uint64_t{pos[i]} * width, static_cast<const uint8_t*>(bits) + i * width,
                width);
  }
}

void Write(Target live, uint32_t width, uint32_t n, const void* bits) {
  if (n != 0) std::memcpy(Address(live), bits, uint64_t{n} * width);
}

// verdict_of(i): what is said of element i.
template <class F>
void Invert(Source theta, uint32_t n, uint64_t canonical, uint64_t key, uint64_t lanes[2], Inverted* out,
            F&& verdict_of) {
  if (lanes != nullptr) Digest(theta, Cast::kF32ToBf16, n, canonical, key, lanes);
  out->changed_count = 0;
  out->uncertain_count = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const Verdict verdict = verdict_of(i);
    if (verdict.kind == Verdict::kChanged) {
      out->changed_old[out->changed_count] = verdict.old_bits;
      out->changed[out->changed_count++] = i;
    } else if (verdict.kind == Verdict::kUncertain) {
      out->uncertain_low[out->uncertain_count] = verdict.old_bits;
      out->uncertain_span[out->uncertain_count] = verdict.span;
      out->uncertain[out->uncertain_count++] = i;
    }
  }
}

float FloatAt(Source source, uint64_t i) { return LoadAs<float>(Address(source) + i * sizeof(float)); }

void InvertAdamw(Source theta, Source m, Source v, Moments stored, const AdamwBand& band, uint32_t n,
                 uint64_t canonical, uint64_t key, uint64_t lanes[2], Inverted* out) {
  Invert(theta, n, canonical, key, lanes, out, [&](uint32_t i) {
    return InvertAdamwElement(FloatAt(theta, i), LoadMoment(Address(m), i, stored.m_is_bf16),
                              LoadMoment(Address(v), i, stored.v_is_bf16), band);
  });
}

void InvertSgd(Source theta, Source x, Source y, const SgdBand& band, uint32_t n, uint64_t canonical,
               uint64_t key, uint64_t lanes[2], Inverted* out) {
  Invert(theta, n, canonical, key, lanes, out, [&](uint32_t i) {
    return InvertSgdElement(FloatAt(theta, i), FloatAt(x, i), y.base == nullptr ? 0.0f : FloatAt(y, i), band);
  });
}

uint32_t SelectSmall(Source live, Cast cast, uint32_t n, uint32_t* pos, uint16_t* bits) {
  const uint64_t stored = StoredBytes(cast);
  uint32_t count = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const auto served = static_cast<uint16_t>(ServedBits(Address(live) + i * stored, cast));
    if (!InSetZ(served)) continue;
    bits[count] = served;
    pos[count++] = i;
  }
  return count;
}

constexpr Table kTable = {
    .name = "ref",
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

const Table& RefTable() { return kTable; }

}  // namespace deltawire::kernels
