"""Decoder of block streams, written from docs/formats/codings.md alone: the oracle of src/codec.

Plain loops: clarity before speed (about a microsecond a symbol).
"""

from __future__ import annotations

import numpy as np

DENSE, ABSOLUTE, STEP = 0, 1, 2
MAX_ELEMENTS = 1 << 21
LANES = (1, 1024), (2, 4096), (4, 8192), (8, 16384)
ESCAPE_TABLE, UNCERTAIN_TABLE, FIRST_BLOCK_TABLE = 0, 1, 2


class Corrupt(ValueError):
    """The bytes do not fit docs/formats/codings.md."""


def check(condition: bool, message: str) -> None:
    if not condition:
        raise Corrupt(message)


class Bits:
    """A bit stream, lowest bit first."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read(self, count: int) -> int:
        check(self.at + count <= 8 * len(self.data), "bit stream ends early")
        first = self.at // 8
        word = int.from_bytes(self.data[first : first + 10], "little")
        value = (word >> (self.at % 8)) & ((1 << count) - 1)
        self.at += count
        return value

    def exp_golomb(self) -> int:
        k = 0
        while self.read(1) == 0:
            k += 1
            check(k <= 8, "exp-golomb code too long")
        return (1 << k) + self.read(k) - 1

    def end(self) -> None:
        check((self.at + 7) // 8 == len(self.data), "bytes left over after the bit stream")
        check(self.at % 8 == 0 or self.data[-1] >> (self.at % 8) == 0, "padding bits are not zero")


class Table:
    """slot -> (symbol, frequency, slot - start)."""

    def __init__(self, frequencies: list[int]) -> None:
        self.slots: list[tuple[int, int, int]] = []
        self.highest = -1
        for symbol, frequency in enumerate(frequencies):
            self.slots += [(symbol, frequency, i) for i in range(frequency)]
            if frequency:
                self.highest = symbol


def unfold(n: int) -> int:
    return n // 2 if n % 2 == 0 else -(n + 1) // 2


def read_table(bits: Bits) -> Table:
    frequencies = [0] * 256
    if bits.read(1) == 0:
        return Table(frequencies)
    last, implied, precision = bits.read(8), bits.read(8), bits.read(4)
    check(implied <= last and precision <= 11, "table header")
    symbols = [s for s in range(last + 1) if s != implied]
    i = token = 0
    while i < len(symbols):
        token += unfold(bits.exp_golomb())
        check(0 <= token <= 12, "frequency token")
        if token == 0:
            i += bits.exp_golomb()
            check(i < len(symbols), "run of absent symbols")
        else:
            cut = max(0, token - 1 - precision)
            frequencies[symbols[i]] = (1 << (token - 1)) + (bits.read(token - 1 - cut) << cut)
        i += 1
    rest = 4096 - sum(frequencies)
    check(rest >= 1, "frequencies add up to more than 4096")
    frequencies[implied] = rest
    check(frequencies[last] > 0, "the last symbol is absent")
    return Table(frequencies)


def open_tables(section: bytes) -> list[Table]:
    if not section:
        return []
    bits = Bits(section[1:])
    tables = [read_table(bits) for _ in range(section[0])]
    bits.end()
    return tables


class Coder:
    """The interleaved states."""

    def __init__(self, stream: bytes, at: int, listed: int) -> None:
        lanes = next((n for n, below in LANES if listed < below), 16)
        check(at + 4 * lanes <= len(stream), "states are cut off")
        self.stream = stream
        self.states = [int.from_bytes(stream[at + 4 * i : at + 4 * i + 4], "little") for i in range(lanes)]
        check(all(x >= 65536 for x in self.states), "a state is below 65536")
        self.at = at + 4 * lanes

    def segment(self, tables: list[Table], table: int, alphabet: int, count: int) -> list[int]:
        check(table < len(tables), f"table {table} is missing")
        check(0 <= tables[table].highest < alphabet, f"table {table} is empty or has a symbol >= {alphabet}")
        slots = tables[table].slots
        lanes = len(self.states)
        symbols = []
        for i in range(count):
            x = self.states[i % lanes]
            symbol, frequency, offset = slots[x % 4096]
            x = frequency * (x // 4096) + offset
            if x < 65536:
                check(self.at + 2 <= len(self.stream), "words ran out")
                x = x << 16 | int.from_bytes(self.stream[self.at : self.at + 2], "little")
                self.at += 2
            self.states[i % lanes] = x
            symbols.append(symbol)
        return symbols

    def end(self) -> None:
        check(all(x == 65536 for x in self.states), "the states do not end at 65536")


def from_bucket(bucket: int, bits: Bits) -> int:
    extra = bucket // 4
    return ((4 + bucket % 4) << extra) - 4 + bits.read(extra)


def positions_of(gaps: list[int], elements: int) -> list[int]:
    positions = []
    at = -1
    for gap in gaps:
        at += gap + 1
        check(at < elements, f"position {at} of {elements}")
        positions.append(at)
    return positions


def read_coded_steps(tables, elements, width, changed, uncertain, stream):
    check(changed > 0 or stream[0] == FIRST_BLOCK_TABLE, "form of a stream without changed elements")
    coder = Coder(stream, 1, changed + uncertain)
    symbols = coder.segment(tables, stream[0], 240, changed) if changed else []
    escapes = [i for i, s in enumerate(symbols) if s >= 160]
    magnitudes = coder.segment(tables, ESCAPE_TABLE, 248, len(escapes)) if escapes else []
    unsure = coder.segment(tables, UNCERTAIN_TABLE, 160, uncertain) if uncertain else []
    coder.end()
    bits = Bits(stream[coder.at :])
    positions = positions_of([from_bucket(s % 80, bits) for s in symbols], elements)
    steps = [(1, -1, 0)[s // 80] for s in symbols]
    largest = 1 << (8 * width - 1)
    for i, bucket in zip(escapes, magnitudes, strict=True):
        negative = bits.read(1)
        m = from_bucket(bucket, bits)
        check(m != 1 and m <= largest - 1 + negative and not (m == 0 and negative), f"escape {negative} {m}")
        steps[i] = -m if negative else m
    gaps, residues, new_bits = [], [], []
    for s in unsure:
        gaps.append(from_bucket(s % 80, bits))
        residues.append(0xFF if s >= 80 else bits.read(2))
        new_bits.append(bits.read(8 * width) if s >= 80 else 0)
    bits.end()
    return positions, steps, positions_of(gaps, elements), residues, new_bits


def read_coded_absolute(tables, elements, width, changed, stream):
    plane_tables = stream[1 : 1 + width]
    check(len(plane_tables) == width, "plane tables are cut off")
    coder = Coder(stream, 1 + width, changed)
    symbols = coder.segment(tables, stream[0], 80, changed)
    planes = [coder.segment(tables, t, 256, changed) if t else None for t in plane_tables]
    coder.end()
    at = coder.at
    for i, plane in enumerate(planes):
        if plane is None:
            planes[i] = stream[at : at + changed]
            check(len(planes[i]) == changed, "a raw plane is cut off")
            at += changed
    bits = Bits(stream[at:])
    positions = positions_of([from_bucket(s, bits) for s in symbols], elements)
    bits.end()
    values = []
    for i in range(changed):
        x = 0
        for plane in planes:
            x = x << 8 | plane[i]
        values.append(x >> 1 | (x & 1) << (8 * width - 1))  # rotated back
    return positions, values


class Plain:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        check(self.at + count <= len(self.data), "plain stream ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                check(byte != 0 or shift == 7, "varint with a needless zero byte")
                return value
            check(shift < 70, "varint too long")


def read_plain(form, elements, width, changed, uncertain, body):
    source = Plain(body)
    if 2 * changed > elements:
        absent = positions_of([source.varint() for _ in range(elements - changed)], elements)
        positions = sorted(set(range(elements)) - set(absent))
    else:
        positions = positions_of([source.varint() for _ in range(changed)], elements)
    if form == 0:
        values = [int.from_bytes(source.take(width), "little") for _ in range(changed)]
    else:
        folded = [source.varint() for _ in range(changed)]
        check(all(n < 1 << 8 * width for n in folded), "a step is wider than its element")
        values = [unfold(n) for n in folded]
    gaps, residues, new_bits = [], [], []
    for _ in range(uncertain):
        gap, raw = divmod(source.varint(), 2)
        gaps.append(gap)
        residue = 0xFF if raw else source.take(1)[0]
        check(raw or residue < 4, "residue above 3")
        residues.append(residue)
        new_bits.append(int.from_bytes(source.take(width), "little") if raw else 0)
    check(source.at == len(body), "bytes left over")
    return positions, values, positions_of(gaps, elements), residues, new_bits


def decode(tables, coding: int, elements: int, width: int, changed: int, uncertain: int, stream: bytes):
    """(changed positions, values or steps, uncertain positions, residues, bits) as numpy arrays.

    Values, steps (mod 2^(8 width)) and bits have the unsigned dtype of the width; a residue of 0xFF says that
    the element's bits count.
    """
    stream = bytes(stream)
    check(coding in (ABSOLUTE, STEP), f"coding {coding}")
    check(width in (1, 2, 4, 8) and elements <= MAX_ELEMENTS, "shape of the block")
    check(changed + uncertain <= elements, "more entries than elements")
    if coding == ABSOLUTE:
        changed, uncertain = changed + uncertain, 0
    lists = [], [], [], [], []
    if changed + uncertain == 0:
        check(not stream, "bytes for a block without changes")
    else:
        check(len(stream) > 0, "no form")
        form = stream[0]
        if form < FIRST_BLOCK_TABLE:
            check(form == 0 or coding == STEP, "form 1 is for steps")
            lists = read_plain(form, elements, width, changed, uncertain, stream[1:])
        elif coding == STEP:
            lists = read_coded_steps(tables, elements, width, changed, uncertain, stream)
        else:
            lists = (*read_coded_absolute(tables, elements, width, changed, stream), [], [], [])
    positions, values, unsure, residues, new_bits = lists
    check(not set(positions) & set(unsure), "an element stands in both lists")
    unsigned = np.dtype(f"<u{width}")
    mask = (1 << 8 * width) - 1
    return (
        np.array(positions, dtype=np.uint32),
        np.array([v & mask for v in values], dtype=unsigned),
        np.array(unsure, dtype=np.uint32),
        np.array(residues, dtype=np.uint8),
        np.array(new_bits, dtype=unsigned),
    )


def ordinal(bits: np.ndarray) -> np.ndarray:
    top = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    return np.where(bits & top, bits ^ (top - bits.dtype.type(1)), bits)


def resolve(coding: int, values, residues, new_bits, old_changed, old_uncertain):
    """New bits of the changed and of the uncertain elements, given the old bits at their positions."""
    if coding == ABSOLUTE:
        return values, new_bits
    with np.errstate(over="ignore"):
        changed = ordinal(ordinal(old_changed) + values)
        kind = values.dtype.type
        lowest = ordinal(old_uncertain) - kind(1)
        candidate = ordinal(lowest + ((residues.astype(values.dtype) - lowest) & kind(3)))
    return changed, np.where(residues == 0xFF, new_bits, candidate)
