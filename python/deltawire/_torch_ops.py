"""The kernel table for tensors on any device, in torch operations; kernels/ref defines every result.

A call sees at most one block (2^21 elements). Host arrays are writable memoryviews that end with the call;
only results cross. Integer arithmetic of torch wraps, so int64 serves as arithmetic modulo 2^64.
"""

from __future__ import annotations

import torch

# kernels::Cast
_BITS8, _BITS16, _BITS32, _BITS64, _F32_TO_BF16, _F32_TO_F16, _BF16_TO_F32, _F16_TO_F32 = range(8)
_STORED_BYTES = (1, 2, 4, 8, 4, 4, 2, 2)
_SERVED_BYTES = (1, 2, 4, 8, 2, 2, 4, 4)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_GOLDEN = 0x9E3779B97F4A7C15
_ROW_WORDS = 512  # words that share a right factor of the digest
SMALL_MAGNITUDE = 0x0800  # set Z
_SIGN = -0x80000000  # of int32

AdamwBand = tuple[float, float, float, float, float, float, float, float, bool, bool]
SgdBand = tuple[float, float, float, float, float, float, float]


def _signed(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def _shift_right(z: torch.Tensor, bits: int) -> torch.Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: torch.Tensor) -> torch.Tensor:
    z = z ^ _shift_right(z, 30)
    z = z * _signed(0xBF58476D1CE4E5B9)
    z = z ^ _shift_right(z, 27)
    z = z * _signed(0x94D049BB133111EB)
    return z ^ _shift_right(z, 31)


def _factors(first: int, count: int, lane: int, key: int, device: torch.device) -> torch.Tensor:
    """mix(key + (2i + 1 + lane) G) | 1 for i in [first, first + count)."""
    i = torch.arange(first, first + count, dtype=torch.int64, device=device)
    return _mix((2 * i + 1 + lane) * _signed(_GOLDEN) + _signed(key)) | 1


def _bf16_from_f32(bits: torch.Tensor) -> torch.Tensor:
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(torch.int16)
    return torch.where((bits & 0x7FFFFFFF) > 0x7F800000, rounded.new_full((), -1), rounded)


def _f16_from_f32(bits: torch.Tensor) -> torch.Tensor:
    rounded = bits.view(torch.float32).to(torch.float16).view(torch.int16)
    nan = (((bits >> 16) & 0x8000) | 0x7E00 | ((bits >> 13) & 0x3FF)).to(torch.int16)
    return torch.where((bits & 0x7FFFFFFF) > 0x7F800000, nan, rounded)


def _f32_from_f16(bits: torch.Tensor) -> torch.Tensor:
    wide = bits.view(torch.float16).to(torch.float32).view(torch.int32)
    word = bits.to(torch.int32) & 0xFFFF
    nan = ((word & 0x8000) << 16) | 0x7FC00000 | ((word & 0x3FF) << 13)
    return torch.where((word & 0x7FFF) > 0x7C00, nan, wide)


def _served(stored: torch.Tensor, cast: int) -> torch.Tensor:
    """Stored bits as integers -> served bits as integers."""
    if cast == _F32_TO_BF16:
        return _bf16_from_f32(stored)
    if cast == _F32_TO_F16:
        return _f16_from_f32(stored)
    if cast == _BF16_TO_F32:
        return stored.to(torch.int32) << 16
    if cast == _F16_TO_F32:
        return _f32_from_f16(stored)
    return stored


def _ordinal(bits: torch.Tensor) -> torch.Tensor:
    """Monotone integer order of BF16 bits in int32."""
    wide = bits.to(torch.int32)
    return wide ^ ((wide >> 31) & 0x7FFF)


def _host(view: memoryview, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(view, dtype=dtype)


class Storage:
    """The bytes of one torch storage. Offsets are in bytes and aligned to the element, as torch's own are."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._device = storage.device
        # An inference tensor could not be written later, outside of inference mode.
        with torch.inference_mode(False):
            self._bytes = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        self._views: dict[int, torch.Tensor] = {}
        self._left: tuple[torch.Tensor, torch.Tensor] | None = None

    def synchronize(self) -> int:
        if self._device.type != "cpu":
            getattr(torch, self._device.type).synchronize(self._device)
        return 0

    def allocate(self, size_bytes: int) -> Storage:
        with torch.inference_mode(False):
            return Storage(torch.zeros(size_bytes, dtype=torch.uint8, device=self._device).untyped_storage())

    def elements(self, width: int) -> torch.Tensor:
        """All whole elements of that width, as integers."""
        if width not in self._views:
            whole = self._bytes.numel() // width * width
            with torch.inference_mode(False):  # nor could a view that was made inside of it
                self._views[width] = self._bytes[:whole].view(_INTEGERS[width])
        return self._views[width]

    def _run(self, offset: int, width: int, n: int) -> torch.Tensor:
        first, rest = divmod(offset, width)
        if rest or first < 0 or first + n > self.elements(width).numel():
            raise IndexError(f"{n} elements of {width} bytes at byte {offset} of {self._bytes.numel()}")
        return self.elements(width)[first : first + n]

    def _indices(self, offset: int, width: int, positions: memoryview) -> torch.Tensor:
        """Positions relative to an offset that may stand before the storage -> indices."""
        first, rest = divmod(offset, width)
        if rest:
            raise IndexError(f"byte {offset} is not a multiple of {width}")
        return _host(positions, torch.int32).to(self._device).to(torch.int64) + first

    def _served_run(self, offset: int, cast: int, n: int) -> torch.Tensor:
        return _served(self._run(offset, _STORED_BYTES[cast], n), cast)

    @torch.no_grad()
    def digest(self, offset: int, cast: int, n: int, canonical: int, key: int) -> tuple[int, int]:
        bits = self._served_run(offset, cast, n)
        first_word, head = divmod(canonical, 8)
        size = head + n * _SERVED_BYTES[cast]
        padded = torch.zeros(-(-size // 8) * 8, dtype=torch.uint8, device=self._device)
        padded[head:size] = bits.contiguous().view(torch.uint8)
        words = padded.view(torch.int64)
        swapped = padded.view(-1, 8).flip(1).contiguous().view(torch.int64).view(-1)
        j = torch.arange(first_word, first_word + words.numel(), dtype=torch.int64, device=self._device)
        row = first_word // _ROW_WORDS
        rows = (first_word + words.numel() - 1) // _ROW_WORDS - row + 1
        if self._left is None:
            self._left = (
                _factors(0, _ROW_WORDS, 0, 0, self._device),
                _factors(0, _ROW_WORDS, 1, 0, self._device),
            )
        lanes = []
        for lane, word in enumerate((words, swapped)):
            right = _factors(row, rows, lane, key, self._device)
            factor = self._left[lane][j % _ROW_WORDS] * right[j // _ROW_WORDS - row]
            lanes.append((factor * word).sum())
        lane0, lane1 = torch.stack(lanes).tolist()
        return lane0 & 0xFFFFFFFFFFFFFFFF, lane1 & 0xFFFFFFFFFFFFFFFF

    @torch.no_grad()
    def compare(
        self,
        old: Storage,
        old_offset: int,
        offset: int,
        cast: int,
        n: int,
        positions: memoryview,
        old_bits: memoryview,
        new_bits: memoryview,
    ) -> int:
        width = _SERVED_BYTES[cast]
        before = old._run(old_offset, width, n)
        after = self._served_run(offset, cast, n)
        found = (before != after).nonzero().view(-1)
        count = found.numel()
        _host(positions, torch.int32)[:count] = found.cpu()
        _host(old_bits, _INTEGERS[width])[:count] = before[found].cpu()
        _host(new_bits, _INTEGERS[width])[:count] = after[found].cpu()
        return count

    @torch.no_grad()
    def read(self, offset: int, cast: int, n: int, out: memoryview) -> int:
        _host(out, _INTEGERS[_SERVED_BYTES[cast]]).copy_(self._served_run(offset, cast, n))
        return 0

    @torch.no_grad()
    def copy(self, offset: int, cast: int, n: int, to: Storage, to_offset: int) -> int:
        to._run(to_offset, _SERVED_BYTES[cast], n).copy_(self._served_run(offset, cast, n))
        return 0

    @torch.no_grad()
    def read_strided(self, offset: int, cast: int, stride: int, n: int, out: memoryview) -> int:
        stored = self.elements(_STORED_BYTES[cast])
        first = offset // _STORED_BYTES[cast]
        index = torch.arange(n, dtype=torch.int64, device=self._device) * stride + first
        _host(out, _INTEGERS[_SERVED_BYTES[cast]]).copy_(_served(stored[index], cast))
        return 0

    @torch.no_grad()
    def gather(self, offset: int, cast: int, positions: memoryview, out: memoryview) -> int:
        stored = _STORED_BYTES[cast]
        bits = self.elements(stored)[self._indices(offset, stored, positions)]
        _host(out, _INTEGERS[_SERVED_BYTES[cast]]).copy_(_served(bits, cast))
        return 0

    @torch.no_grad()
    def scatter(self, offset: int, width: int, positions: memoryview, bits: memoryview) -> int:
        index = self._indices(offset, width, positions)
        self.elements(width)[index] = _host(bits, _INTEGERS[width]).to(self._device)
        return 0

    @torch.no_grad()
    def write(self, offset: int, width: int, bits: memoryview) -> int:
        values = _host(bits, _INTEGERS[width])
        self._run(offset, width, values.numel()).copy_(values)
        return 0

    def _moment(self, offset: int, n: int, is_bf16: bool) -> torch.Tensor:
        """A stored optimizer moment as float32."""
        if is_bf16:
            return (self._run(offset, 2, n).to(torch.int32) << 16).view(torch.float32)
        return self._run(offset, 4, n).view(torch.float32)

    @torch.no_grad()
    def invert_adamw(
        self,
        offset: int,
        m_storage: Storage,
        m_offset: int,
        m_is_bf16: bool,
        v_storage: Storage,
        v_offset: int,
        v_is_bf16: bool,
        band: AdamwBand,
        n: int,
        *lists: memoryview,
    ) -> tuple[int, int]:
        k1, k2, s, r, eps, band_a, band_b, band_c, tiny_eps, idle_stays = band
        theta = self._run(offset, 4, n).view(torch.float32)
        m = m_storage._moment(m_offset, n, m_is_bf16)
        v = v_storage._moment(v_offset, n, v_is_bf16)
        u = (m * s) / (torch.sqrt(v * r) + eps)
        undone = theta * k1 + u * k2
        b = theta.abs() * band_a + (u.abs() * band_b + band_c)
        in_range = (v < 2.0**100) & (m.abs() < 2.0**100)
        if tiny_eps:
            in_range &= (m == 0) | (v >= 2.0**-100)
        return _decide(theta, undone, b, in_range, _zero(m) & idle_stays, lists)

    @torch.no_grad()
    def invert_sgd(
        self,
        offset: int,
        x_storage: Storage,
        x_offset: int,
        y_storage: Storage | None,
        y_offset: int,
        band: SgdBand,
        n: int,
        *lists: memoryview,
    ) -> tuple[int, int]:
        k1, k2, s, mu, band_a, band_b, band_c = band
        theta = self._run(offset, 4, n).view(torch.float32)
        x = x_storage._moment(x_offset, n, False)
        y = torch.zeros_like(x) if y_storage is None else y_storage._moment(y_offset, n, False)
        u = (x + y * mu) * s
        size = (x.abs() + y.abs() * abs(mu)) * abs(s)
        undone = theta * k1 + u * k2
        b = theta.abs() * band_a + (size * band_b + band_c)
        everywhere = torch.ones_like(theta, dtype=torch.bool)
        return _decide(theta, undone, b, everywhere, _zero(x) & _zero(y), lists)

    @torch.no_grad()
    def select_small(self, offset: int, cast: int, n: int, positions: memoryview, out: memoryview) -> int:
        bits = self._served_run(offset, cast, n)
        size = bits.to(torch.int32) & 0x7FFF
        found = ((bits == -0x8000) | ((size >= 1) & (size <= SMALL_MAGNITUDE))).nonzero().view(-1)
        count = found.numel()
        _host(positions, torch.int32)[:count] = found.cpu()
        _host(out, torch.int16)[:count] = bits[found].cpu()
        return count


def _zero(x: torch.Tensor) -> torch.Tensor:
    """By bits: even where this side takes subnormals for zero, the step may not have."""
    return (x.view(torch.int32) & 0x7FFFFFFF) == 0


def _rounded_outward(x: torch.Tensor, towards: float) -> torch.Tensor:
    """float64 -> the float32 at or beyond it in the direction of ``towards``."""
    near = x.to(torch.float32)
    inward = near.to(torch.float64) > x if towards < 0 else near.to(torch.float64) < x
    return torch.where(inward, torch.nextafter(near, torch.full_like(near, towards)), near)


def _decide(
    theta: torch.Tensor,
    undone: torch.Tensor,
    b: torch.Tensor,
    in_range: torch.Tensor,
    idle: torch.Tensor,
    lists: tuple[memoryview, ...],
) -> tuple[int, int]:
    """kernels::DecideElement, element by element. Fills changed, changed_old, uncertain, uncertain_low and
    uncertain_span; returns the counts of changed and uncertain elements."""
    bits = theta.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    cell = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) & 0x7FFF0000
    a = magnitude.view(torch.float32)
    outer = (cell + 0x8000).view(torch.float32) - a
    inner = a - torch.where(cell != 0, cell - 0x8000, 0).view(torch.float32)
    x = (undone.view(torch.int32) ^ (bits & _SIGN)).view(torch.float32)

    # Written so that any NaN ends in "not covered" or "not kept".
    covered = in_range & (cell < 0x7F800000) & (magnitude < 0x7F800000)
    same = (covered & (x + b < outer) & (b - x < inner)) | ((bits == 0) & idle)
    flagged = (~same).nonzero().view(-1)

    # The old value lies in [low, high]; 1.0001 covers the roundings of b and of this sum.
    half_width = b[flagged].to(torch.float64) * 1.0001
    middle = theta[flagged].to(torch.float64) + undone[flagged].to(torch.float64)
    low = _bf16_from_f32(_rounded_outward(middle - half_width, -torch.inf).view(torch.int32))
    high = _bf16_from_f32(_rounded_outward(middle + half_width, torch.inf).view(torch.int32))
    known = covered[flagged]
    for end in (low, high):
        size = end.to(torch.int32) & 0x7FFF
        known &= (size > SMALL_MAGNITUDE) & (size < 0x7F80)
    certain = known & (low == high)
    moved = certain & (low != _bf16_from_f32(bits[flagged]))
    neighbours = known & (_ordinal(high) - _ordinal(low) == 1)

    changed, changed_old, uncertain, uncertain_low, uncertain_span = lists
    unclear = ~certain
    counts = (int(moved.sum()), int(unclear.sum()))
    _host(changed, torch.int32)[: counts[0]] = flagged[moved].cpu()
    _host(changed_old, torch.int16)[: counts[0]] = low[moved].cpu()
    _host(uncertain, torch.int32)[: counts[1]] = flagged[unclear].cpu()
    lower = torch.where(neighbours, low, low.new_zeros(()))
    _host(uncertain_low, torch.int16)[: counts[1]] = lower[unclear].cpu()
    _host(uncertain_span, torch.uint8)[: counts[1]] = neighbours[unclear].to(torch.uint8).cpu()
    return counts
