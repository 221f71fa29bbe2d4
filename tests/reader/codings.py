"""Decoder of block streams, written from docs/formats/codings.md alone: the oracle of src/codec.

Plain loops: clarity before speed (about a microsecond a symbol).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DENSE, ABSOLUTE, STEP, CLASS = 0, 1, 2, 3
MAX_ELEMENTS = 1 << 21
LANES = (1, 1024), (2, 4096), (4, 8192), (8, 16384)
ESCAPE_TABLE, UNCERTAIN_TABLE, FIRST_CODED = 0, 1, 2
BITMAP_FORMS = 254, 255
MAX_TABLES, MAX_PROFILES, MAX_CLASSES = 254, 252, 16


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


@dataclass(frozen=True)
class Profile:
    """How a base is cut into classes, and the table of each class."""

    cuts: list[int]
    tables: list[int]

    def classes(self, base: np.ndarray) -> np.ndarray:
        """The class of each element."""
        width = 8 * base.dtype.itemsize
        keys = (base.astype(np.uint64) << np.uint64(1)) >> np.uint64(width - 8) & np.uint64(0xFF)
        return np.searchsorted(np.array(self.cuts, dtype=np.uint64), keys, side="right")


class Section:
    """The tables and profiles of a part."""

    def __init__(self, section: bytes) -> None:
        self.tables: list[Table] = []
        self.profiles: list[Profile] = []
        if not section:
            return
        check(len(section) >= 2, "entropy section is cut off")
        tables, profiles = section[0], section[1]
        check(tables <= MAX_TABLES and profiles <= MAX_PROFILES, "too many tables or profiles")
        at = 2
        for _ in range(profiles):
            check(at < len(section), "a profile is cut off")
            classes = section[at]
            check(1 <= classes <= MAX_CLASSES and at + 2 * classes <= len(section), "a profile is cut off")
            cuts = list(section[at + 1 : at + classes])
            check(all(a < b for a, b in zip([0, *cuts], cuts, strict=False)), "cuts don't ascend")
            self.profiles.append(Profile(cuts, list(section[at + classes : at + 2 * classes])))
            at += 2 * classes
        bits = Bits(section[at:])
        self.tables = [read_table(bits) for _ in range(tables)]
        bits.end()


def open_tables(section: bytes) -> Section:
    return Section(section)


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


def varint(source: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        check(at < len(source), "varint is cut off")
        byte = source[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            check(byte != 0 or shift == 7, "varint with a needless zero byte")
            return value, at
        check(shift < 70, "varint too long")


def read_coded_steps(section, by_class, elements, width, changed, uncertain, stream):
    """Positions (of a class coding: ranks, class after class), steps and the uncertain lists; the counts of
    the classes, and the profile."""
    form = stream[0]
    check(changed > 0 or form == FIRST_CODED, "form of a stream without changed elements")
    profile = None
    counts, tables = [changed], [form]
    at = 1
    if by_class and changed:
        check(form - FIRST_CODED < len(section.profiles), f"profile {form - FIRST_CODED} is missing")
        profile = section.profiles[form - FIRST_CODED]
        tables = profile.tables
        for _ in tables[1:]:
            count, at = varint(stream, at)
            counts.append(count)
            counts[0] -= count
        check(counts[0] >= 0, "the classes have more elements than the block lists")
    coder = Coder(stream, at, changed + uncertain)
    symbols = []
    for table, count in zip(tables, counts, strict=True):
        if count:
            check(table >= FIRST_CODED, "a class with elements and without a table")
            symbols.append(coder.segment(section.tables, table, 240, count))
        else:
            symbols.append([])
    escapes = sum(s >= 160 for part in symbols for s in part)
    magnitudes = iter(coder.segment(section.tables, ESCAPE_TABLE, 248, escapes) if escapes else [])
    unsure = coder.segment(section.tables, UNCERTAIN_TABLE, 160, uncertain) if uncertain else []
    coder.end()
    bits = Bits(stream[coder.at :])
    positions, steps = [], []
    largest = 1 << (8 * width - 1)
    for part in symbols:
        positions += positions_of([from_bucket(s % 80, bits) for s in part], elements)
        for s in part:
            step = (1, -1, 0)[s // 80]
            if s >= 160:
                negative = bits.read(1)
                m = from_bucket(next(magnitudes), bits)
                check(
                    m != 1 and m <= largest - 1 + negative and not (m == 0 and negative),
                    f"escape {negative} {m}",
                )
                step = -m if negative else m
            steps.append(step)
    gaps, residues, new_bits = [], [], []
    for s in unsure:
        gaps.append(from_bucket(s % 80, bits))
        residues.append(0xFF if s >= 80 else bits.read(2))
        new_bits.append(bits.read(8 * width) if s >= 80 else 0)
    bits.end()
    return (positions, steps, positions_of(gaps, elements), residues, new_bits), counts, profile


def read_coded_absolute(section, elements, width, changed, stream):
    plane_tables = stream[1 : 1 + width]
    check(len(plane_tables) == width, "plane tables are cut off")
    coder = Coder(stream, 1 + width, changed)
    symbols = coder.segment(section.tables, stream[0], 80, changed)
    planes = [coder.segment(section.tables, t, 256, changed) if t else None for t in plane_tables]
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
        value, self.at = varint(self.data, self.at)
        return value


def read_plain(form, elements, width, changed, uncertain, body):
    source = Plain(body)
    if form in BITMAP_FORMS:
        bitmap = np.unpackbits(np.frombuffer(source.take((elements + 7) // 8), "u1"), bitorder="little")
        positions = np.flatnonzero(bitmap).tolist()
        check(len(positions) == changed and (not positions or positions[-1] < elements), "bits of the bitmap")
    elif 2 * changed > elements:
        absent = positions_of([source.varint() for _ in range(elements - changed)], elements)
        positions = sorted(set(range(elements)) - set(absent))
    else:
        positions = positions_of([source.varint() for _ in range(changed)], elements)
    if form % 2 == 0:
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


def decode(
    section: Section,
    coding: int,
    elements: int,
    width: int,
    changed: int,
    uncertain: int,
    stream: bytes,
    base: np.ndarray | None = None,
):
    """(changed positions, values or steps, uncertain positions, residues, bits, populations) as numpy arrays.

    Values, steps (mod 2^(8 width)) and bits have the unsigned dtype of the width; a residue of 0xFF says that
    the element's bits count. base: the block's old bits, flat; for CLASS only. populations: how many elements
    each class has in the virtual base; empty where the stream has no classes.
    """
    stream = bytes(stream)
    check(coding in (ABSOLUTE, STEP, CLASS), f"coding {coding}")
    check(width in (1, 2, 4, 8) and elements <= MAX_ELEMENTS, "shape of the block")
    check(changed + uncertain <= elements, "more entries than elements")
    if coding == ABSOLUTE:
        changed, uncertain = changed + uncertain, 0
    lists = [], [], [], [], []
    counts, profile = [], None
    if changed + uncertain == 0:
        check(not stream, "bytes for a block without changes")
    else:
        check(len(stream) > 0, "no form")
        form = stream[0]
        if form < FIRST_CODED or form in BITMAP_FORMS:
            check(form % 2 == 0 or coding != ABSOLUTE, "varints are for steps")
            lists = read_plain(form, elements, width, changed, uncertain, stream[1:])
        elif coding == ABSOLUTE:
            lists = (*read_coded_absolute(section, elements, width, changed, stream), [], [], [])
        else:
            lists, counts, profile = read_coded_steps(
                section, coding == CLASS, elements, width, changed, uncertain, stream
            )
    positions, values, unsure, residues, new_bits = lists
    unsigned = np.dtype(f"<u{width}")
    mask = (1 << 8 * width) - 1
    positions = np.array(positions, dtype=np.uint32)
    values = np.array([v & mask for v in values], dtype=unsigned)
    unsure = np.array(unsure, dtype=np.uint32)
    residues = np.array(residues, dtype=np.uint8)
    new_bits = np.array(new_bits, dtype=unsigned)
    populations = np.zeros(0, dtype=np.uint32)
    if profile is not None:
        virtual = base.copy()
        virtual[unsure] = resolve_uncertain(residues, new_bits, base[unsure])
        positions, values, populations = place(profile, counts, positions, values, virtual)
    check(not set(positions.tolist()) & set(unsure.tolist()), "an element stands in both lists")
    return positions, values, unsure, residues, new_bits, populations


def place(profile: Profile, counts: list[int], ranks, steps, virtual: np.ndarray):
    """Ranks in the classes of a base -> ascending positions, with the steps in their order."""
    classes = profile.classes(virtual)
    populations = np.bincount(classes, minlength=len(counts)).astype("<u4")
    found, at = [], 0
    for c, count in enumerate(counts):
        members = np.flatnonzero(classes == c)
        mine = ranks[at : at + count]
        check(count == 0 or mine[-1] < members.size, f"the base has {members.size} elements of class {c}")
        found.append(members[mine])
        at += count
    positions = np.concatenate(found)
    order = np.argsort(positions)
    return positions[order].astype(np.uint32), steps[order], populations


def ordinal(bits: np.ndarray) -> np.ndarray:
    top = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    return np.where(bits & top, bits ^ (top - bits.dtype.type(1)), bits)


def resolve_uncertain(residues, new_bits, old):
    kind = new_bits.dtype.type
    with np.errstate(over="ignore"):
        lowest = ordinal(old) - kind(1)
        candidate = ordinal(lowest + ((residues.astype(new_bits.dtype) - lowest) & kind(3)))
    return np.where(residues == 0xFF, new_bits, candidate)


def resolve(coding: int, values, residues, new_bits, old_changed, old_uncertain):
    """New bits of the changed and of the uncertain elements, given the old bits at their positions."""
    if coding == ABSOLUTE:
        return values, new_bits
    with np.errstate(over="ignore"):
        changed = ordinal(ordinal(old_changed) + values)
    return changed, resolve_uncertain(residues, new_bits, old_uncertain)
