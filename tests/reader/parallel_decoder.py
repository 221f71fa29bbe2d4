"""A second decoder of step and class streams, from docs/formats/codings.md alone, in whole-array operations.

Why it is here: an engine's accelerator can decode these bytes as they are, without another format. What a GPU
does well is all that this file uses, each of it a known kernel:

| what | how it is done here |
|---|---|
| rANS | the lanes of a block in lock step, one vector; words are dealt out by a prefix sum of who needs one |
| extras | an exclusive prefix sum of their sizes, then one gather of bits for all of them |
| gaps | a prefix sum, started anew for each class |
| ranks -> positions | a stable sort of the elements by class (a radix pass), then one gather |
| ascending order | a scatter into the block, then a compaction |
| varints | a compaction of the bytes that end one, then a gather of at most ten bytes |
| entries of unlike size | each byte points to the entry after one that would start there; pointers double |

Only one loop depends on the length of the lists: the one over rows of rANS symbols, which has about
`listed` / lanes rounds, of up to 16 lanes a block. Blocks are independent, so a device runs the rows of all
blocks of a part at the same time. `test_lines_executed_are_bounded_by_rows` holds this file to it.

Entropy sections are parsed by `codings.Section`: a few hundred bytes, once a part.
"""

from __future__ import annotations

from dataclasses import dataclass

import codings
import numpy as np
from codings import CLASS, STEP, check

U64 = np.uint64
GAP_BUCKETS = 80  # symbols of a step list: 80 kind + bucket; of uncertain ones: 80 raw + bucket
STEP_SYMBOLS, ESCAPE_SYMBOLS, UNCERTAIN_SYMBOLS = 3 * GAP_BUCKETS, 248, 2 * GAP_BUCKETS
RENORMALISED = 1 << 16
VARINT_BYTES = 10


def exclusive(sizes: np.ndarray) -> np.ndarray:
    """Prefix sums of what lies before each element."""
    return np.cumsum(sizes) - sizes


def read_bits(data: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Numbers of `sizes` (0 to 64) bits at bit `offsets`, u64; they lie in `data`."""
    padded = np.concatenate([data, np.zeros(9, "u1")])
    window = padded[(offsets // 8)[:, None] + np.arange(9)]
    low = window[:, :8].copy().view("<u8").ravel()
    shift = (offsets % 8).astype(U64)
    high = window[:, 8].astype(U64) << (U64(63) - shift) << U64(1)  # in two: a shift by 64 is not defined
    mask = np.where(sizes == 0, U64(0), ~U64(0) >> (U64(64) - np.maximum(sizes, 1).astype(U64)))
    return (low >> shift | high) & mask


def read_varints(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The varints from byte `starts` to the last byte `ends`, u64."""
    sizes = ends - starts + 1
    check(bool((sizes <= VARINT_BYTES).all()), "varint too long")
    padded = np.concatenate([data, np.zeros(VARINT_BYTES, "u1")])
    digits = np.arange(VARINT_BYTES)
    window = np.where(digits < sizes[:, None], padded[starts[:, None] + digits], 0)
    check(bool((window[:, -1] <= 1).all()), "varint above 2^64")
    check(bool(((data[ends] != 0) | (sizes == 1)).all()), "varint with a needless zero byte")
    return ((window & 0x7F).astype(U64) << (7 * digits).astype(U64)).sum(axis=1, dtype=U64)


def leading_varints(data: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` varints of `data`, and what follows them."""
    ends = np.flatnonzero(data < 0x80)[:count]
    check(ends.size == count, "varint is cut off")
    starts = np.concatenate([[0], ends + 1])
    return read_varints(data, starts[:-1], ends), data[starts[-1] :]


def bucket_bits(buckets: np.ndarray) -> np.ndarray:
    return buckets // 4


def from_buckets(buckets: np.ndarray, extras: np.ndarray) -> np.ndarray:
    return ((4 + buckets % 4).astype(U64) << bucket_bits(buckets).astype(U64)) - U64(4) + extras


def ascending(gaps: np.ndarray, elements: int, heads: np.ndarray | None = None) -> np.ndarray:
    """Gaps -> positions below `elements`, i64. heads: index, for each gap, of the first gap of its list."""
    check(bool((gaps < elements).all()), f"a gap of {elements} or more")
    sums = np.cumsum(gaps.astype(np.int64) + 1)
    if heads is not None and sums.size:
        sums -= np.concatenate([[0], sums])[heads]
    check(bool((sums <= elements).all()), f"a position of {elements} or more")
    return sums - 1


@dataclass
class Lanes:
    """The rANS states of a block, advanced together."""

    section: codings.Section
    states: np.ndarray  # i64; values are below 2^32
    words: np.ndarray
    taken: int = 0

    @classmethod
    def open(cls, section: codings.Section, data: np.ndarray, listed: int) -> Lanes:
        lanes = 16
        for count, below in ((8, 16384), (4, 8192), (2, 4096), (1, 1024)):
            lanes = count if listed < below else lanes
        check(data.size >= 4 * lanes, "states are cut off")
        states = data[: 4 * lanes].copy().view("<u4").astype(np.int64)
        check(bool((states >= RENORMALISED).all()), "a state is below 65536")
        rest = data[4 * lanes :]
        return cls(section, states, rest[: rest.size // 2 * 2].copy().view("<u2").astype(np.int64))

    def segment(self, table: int, alphabet: int, count: int) -> np.ndarray:
        """`count` symbols of a table, i64."""
        if count == 0:
            return np.zeros(0, np.int64)
        check(table < len(self.section.tables), f"table {table} is missing")
        found = self.section.tables[table]
        check(0 <= found.highest < alphabet, f"table {table} is empty or has a symbol >= {alphabet}")
        symbol, frequency, offset = np.array(found.slots, np.int64).T
        lanes = self.states.size
        out = np.empty((-(-count // lanes), lanes), np.int64)
        for row in range(len(out)):
            active = self.states[: count - row * lanes]
            slot = active % 4096
            out[row, : active.size] = symbol[slot]
            x = frequency[slot] * (active // 4096) + offset[slot]
            hungry = x < RENORMALISED
            wanted = self.words[self.taken : self.taken + int(hungry.sum())]
            check(wanted.size == hungry.sum(), "words ran out")
            self.taken += wanted.size
            x[hungry] = x[hungry] << 16 | wanted  # dealt out in the order of the lanes
            active[:] = x
        return out.ravel()[:count]

    def end(self, data: np.ndarray) -> np.ndarray:
        """What follows states and words in `data`, which is what the lanes were opened on."""
        check(bool((self.states == RENORMALISED).all()), "the states do not end at 65536")
        return data[4 * self.states.size + 2 * self.taken :]


@dataclass
class Lists:
    """What a stream says; of a class coding, positions are ranks in `classes` until they are placed."""

    positions: np.ndarray
    classes: np.ndarray  # of each changed element
    steps: np.ndarray  # u64, modulo 2^64; of form 0 and 254 values, see codings.md
    unsure: np.ndarray
    residues: np.ndarray
    new_bits: np.ndarray  # u64
    profile: codings.Profile | None = None


def read_coded(section, by_class: bool, elements: int, width: int, changed: int, uncertain: int, data):
    form = int(data[0])
    data = data[1:]
    check(changed > 0 or form == codings.FIRST_CODED, "form of a stream without changed elements")
    profile = None
    tables, counts = np.array([form]), np.array([changed], np.int64)
    if by_class and changed:
        check(form - codings.FIRST_CODED < len(section.profiles), "the profile is missing")
        profile = section.profiles[form - codings.FIRST_CODED]
        tables = np.array(profile.tables)
        rest, data = leading_varints(data, tables.size - 1)
        check(bool((rest <= changed).all()) and int(rest.sum()) <= changed, "more in classes than listed")
        counts = np.concatenate([[changed - int(rest.sum())], rest.astype(np.int64)])
        check(
            bool(((counts == 0) | (tables >= codings.FIRST_CODED)).all()), "a class with elements, no table"
        )
    lanes = Lanes.open(section, data, changed + uncertain)
    symbols = np.concatenate(
        [lanes.segment(t, STEP_SYMBOLS, n) for t, n in zip(tables.tolist(), counts.tolist(), strict=True)]
    )
    classes = np.repeat(np.arange(counts.size), counts)
    kinds, buckets = symbols // GAP_BUCKETS, symbols % GAP_BUCKETS
    escaped = kinds == 2
    magnitudes = lanes.segment(codings.ESCAPE_TABLE, ESCAPE_SYMBOLS, int(escaped.sum()))
    unsure = lanes.segment(codings.UNCERTAIN_TABLE, UNCERTAIN_SYMBOLS, uncertain)
    bits = lanes.end(data)

    # Where each number lies: of every class first its gaps, then its escapes; last the uncertain elements.
    gap_sizes, escape_sizes = bucket_bits(buckets), 1 + bucket_bits(magnitudes)
    raw, unsure_buckets = unsure >= GAP_BUCKETS, unsure % GAP_BUCKETS
    tail_sizes = np.where(raw, 8 * width, 2)
    unsure_sizes = bucket_bits(unsure_buckets) + tail_sizes
    bits_of_gaps = np.bincount(classes, gap_sizes, counts.size).astype(np.int64)
    bits_of_escapes = np.bincount(classes[escaped], escape_sizes, counts.size).astype(np.int64)
    gap_at = exclusive(gap_sizes) + exclusive(bits_of_escapes)[classes]
    escape_at = exclusive(escape_sizes) + np.cumsum(bits_of_gaps)[classes[escaped]]
    unsure_at = exclusive(unsure_sizes) + int(bits_of_gaps.sum() + bits_of_escapes.sum())
    end = int(bits_of_gaps.sum() + bits_of_escapes.sum() + unsure_sizes.sum())
    check((end + 7) // 8 == bits.size, f"{bits.size} bytes of bits, the symbols want {end} bits")
    check(end % 8 == 0 or int(bits[-1]) >> end % 8 == 0, "padding bits are not zero")

    gaps = from_buckets(buckets, read_bits(bits, gap_at, gap_sizes))
    negative = read_bits(bits, escape_at, np.ones_like(escape_at))
    m = from_buckets(magnitudes, read_bits(bits, escape_at + 1, escape_sizes - 1))
    largest = U64((1 << 8 * width - 1) - 1)
    fits = (m != 1) & (m <= largest + negative) & ((m != 0) | (negative == 0))
    check(bool(fits.all()), "an escape of a step that is not one")
    steps = np.where(kinds == 1, ~U64(0), U64(1))
    steps[escaped] = np.where(negative == 1, ~m + U64(1), m)
    unsure_gaps = from_buckets(unsure_buckets, read_bits(bits, unsure_at, bucket_bits(unsure_buckets)))
    tails = read_bits(bits, unsure_at + bucket_bits(unsure_buckets), tail_sizes)
    return Lists(
        positions=ascending(gaps, elements, exclusive(counts)[classes]),
        classes=classes,
        steps=steps,
        unsure=ascending(unsure_gaps, elements),
        residues=np.where(raw, U64(0xFF), tails).astype("u1"),
        new_bits=np.where(raw, tails, U64(0)),
        profile=profile,
    )


def take(data: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    check(count <= data.size, "plain stream ends early")
    return data[:count], data[count:]


def little_endian(data: np.ndarray, width: int) -> np.ndarray:
    return data.copy().view(f"<u{width}").astype(U64)


def read_plain(elements: int, width: int, changed: int, uncertain: int, data: np.ndarray) -> Lists:
    form, data = int(data[0]), data[1:]
    if form in codings.BITMAP_FORMS:
        bitmap, data = take(data, (elements + 7) // 8)
        positions = np.flatnonzero(np.unpackbits(bitmap, bitorder="little"))
        check(positions.size == changed and bool((positions < elements).all()), "bits of the bitmap")
    elif 2 * changed > elements:
        gaps, data = leading_varints(data, elements - changed)
        kept = np.ones(elements, bool)
        kept[ascending(gaps, elements)] = False
        positions = np.flatnonzero(kept)
    else:
        gaps, data = leading_varints(data, changed)
        positions = ascending(gaps, elements)
    if form % 2 == 0:
        raw, data = take(data, changed * width)
        steps = little_endian(raw, width)
    else:
        folded, data = leading_varints(data, changed)
        check(bool((folded >> U64(8 * width - 1) <= 1).all()), "a step is wider than its element")
        steps = folded >> U64(1) ^ (~(folded & U64(1)) + U64(1))
    unsure, residues, new_bits = read_plain_uncertain(elements, width, uncertain, data)
    return Lists(positions, np.zeros(changed, np.int64), steps, unsure, residues, new_bits)


def read_plain_uncertain(elements: int, width: int, count: int, data: np.ndarray):
    """Entries of unlike size, which fill `data`."""
    size = data.size
    at = np.arange(size)
    # The last byte of a varint that starts at each byte: `size` where it is cut off.
    ends = np.minimum.accumulate(np.where(data < 0x80, at, size)[::-1])[::-1]
    follower = np.minimum(ends + 1 + np.where(data & 1, width, 1), size + 1)
    pointers = np.concatenate([follower, [size + 1, size + 1]])  # size: the end; size + 1: beyond it
    starts, order = np.zeros(count + 1, np.int64), np.arange(count + 1)
    for bit in range(count.bit_length()):
        jumps = (order >> bit & 1).astype(bool)
        starts[jumps] = pointers[starts[jumps]]
        pointers = pointers[pointers]
    check(starts[-1] == size, "the uncertain elements do not fill the stream")
    starts = starts[:-1]
    heads = read_varints(data, starts, ends[starts])
    raw = (heads & U64(1)).astype(bool)
    tails_at = 8 * (ends[starts] + 1)
    tails = read_bits(data, tails_at, np.where(raw, 8 * width, 8))
    check(bool((raw | (tails < 4)).all()), "residue above 3")
    residues = np.where(raw, U64(0xFF), tails).astype("u1")
    return ascending(heads >> U64(1), elements), residues, np.where(raw, tails, U64(0))


def ordinals(bits: np.ndarray) -> np.ndarray:
    width = 8 * bits.dtype.itemsize
    negative = (bits >> bits.dtype.type(width - 1)).astype(bool)
    return np.where(negative, bits ^ bits.dtype.type((1 << width - 1) - 1), bits)


def new_bits_of_uncertain(residues: np.ndarray, new_bits: np.ndarray, old: np.ndarray) -> np.ndarray:
    """The one value in [o(old) - 1, o(old) + 2] with the residue, or the bits that are given."""
    kind = old.dtype.type
    around = ordinals(old)[:, None] + np.array([-1, 0, 1, 2], np.int64).astype(old.dtype)
    here = (around & kind(3)) == residues[:, None]
    return np.where(residues == 0xFF, new_bits, ordinals(np.where(here, around, kind(0)).max(axis=1)))


def resolve(coding, steps, residues, new_bits, old_changed, old_uncertain):
    """As `codings.resolve`, for STEP and CLASS."""
    check(coding in (STEP, CLASS), f"coding {coding}")
    changed = ordinals(ordinals(old_changed) + steps)
    return changed, new_bits_of_uncertain(residues, new_bits, old_uncertain)


def place(lists: Lists, virtual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the ranks, in the order of the lists, and the populations of the classes."""
    width = 8 * virtual.dtype.itemsize
    keys = ((virtual.astype(U64) << U64(1)) >> U64(width - 8)) & U64(0xFF)
    cuts = np.array(lists.profile.cuts, np.int64)
    class_of_key = (np.arange(256)[:, None] >= cuts).sum(axis=1).astype("u1")
    classes = class_of_key[keys]
    populations = np.bincount(classes, minlength=len(lists.profile.tables))
    check(bool((lists.positions < populations[lists.classes]).all()), "a class has too few elements")
    by_class = np.argsort(classes, kind="stable")
    return by_class[exclusive(populations)[lists.classes] + lists.positions], populations.astype("<u4")


def decode(section, coding, elements, width, changed, uncertain, stream, base=None):
    """As `codings.decode`, for STEP and CLASS."""
    check(coding in (STEP, CLASS), f"coding {coding}")
    check(width in (1, 2, 4, 8) and elements <= codings.MAX_ELEMENTS, "shape of the block")
    check(changed + uncertain <= elements, "more entries than elements")
    unsigned = np.dtype(f"<u{width}")
    data = np.frombuffer(bytes(stream), "u1")
    populations = np.zeros(0, "<u4")
    if changed + uncertain == 0:
        check(data.size == 0, "bytes for a block without changes")
        nothing = np.zeros(0, U64)
        lists = Lists(nothing, nothing, nothing, nothing, nothing, nothing)
    else:
        check(data.size > 0, "no form")
        if data[0] < codings.FIRST_CODED or data[0] in codings.BITMAP_FORMS:
            lists = read_plain(elements, width, changed, uncertain, data)
        else:
            lists = read_coded(section, coding == CLASS, elements, width, changed, uncertain, data)
    unsure, residues = lists.unsure.astype("<u4"), lists.residues.astype("u1")
    new_bits = lists.new_bits.astype(unsigned)
    positions = lists.positions
    if lists.profile is not None:
        virtual = base.copy()
        virtual[unsure] = new_bits_of_uncertain(residues, new_bits, base[unsure])
        positions, populations = place(lists, virtual)
    listed = np.zeros(elements, bool)
    listed[positions.astype(np.int64)] = True
    check(not listed[unsure].any(), "an element stands in both lists")
    steps = np.zeros(elements, unsigned)
    steps[positions.astype(np.int64)] = lists.steps.astype(unsigned)
    positions = np.flatnonzero(listed).astype("<u4")
    return positions, steps[positions], unsure, residues, new_bits, populations
