"""The data-parallel decoder agrees with the plain one and with the bits that the library arrives at."""

import sys

import catalog
import codings
import inventory
import numpy as np
import parallel_decoder
import pytest
import safetensors_file
import update
from apply import apply
from codings import CLASS, STEP, Corrupt
from safetensors_file import Tensor, serialize, unsigned
from test_codings import CLASSES, STEPS, VARINTS, filler

PATCHES = {
    "class": "new",
    "step": "new",
    "all": "other",
    "dtypes-class": "dtypes-new",
    "dtypes-step": "dtypes-new",
}
DTYPES = "F8_E4M3", "BF16", "F32", "F64"
NAMES = "positions", "steps", "unsure", "residues", "new bits", "populations"
plain_decode, plain_resolve = codings.decode, codings.resolve


def verdict(decoder, *block):
    """What the decoder makes of a block; None where it is corrupt."""
    try:
        return decoder(*block)
    except Corrupt:
        return None


def agree(*block):
    """The one answer of both decoders."""
    plain, parallel = verdict(plain_decode, *block), verdict(parallel_decoder.decode, *block)
    assert (plain is None) == (parallel is None), f"plain {plain}, parallel {parallel}"
    if plain is not None:
        for name, a, b in zip(NAMES, plain, parallel, strict=True):
            assert a.dtype == b.dtype and np.array_equal(a, b), f"{name}: {a} and {b}"
    return parallel


class Seen:
    """What was decoded in parallel: (coding, width, coded, whether there are classes) -> blocks."""

    def __init__(self) -> None:
        self.kinds: dict[tuple, int] = {}
        self.residues = 0
        self.given = 0
        self.blocks: list[tuple] = []

    def decode(self, section, coding, elements, width, changed, uncertain, stream, base=None):
        block = section, coding, elements, width, changed, uncertain, stream, base
        if coding not in (STEP, CLASS):
            return plain_decode(*block)
        found = agree(*block)
        if found is None:
            raise Corrupt("both decoders refuse the block")
        coded = bool(stream) and 2 <= stream[0] < 254
        kind = coding, width, coded, found[5].size > 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.given += int((found[3] == 0xFF).sum())
        self.residues += int((found[3] < 4).sum())
        self.blocks.append(block)
        return found

    def resolve(self, coding, *lists):
        plain = plain_resolve(coding, *lists)
        if coding not in (STEP, CLASS):
            return plain
        parallel = parallel_decoder.resolve(coding, *lists)
        for a, b in zip(plain, parallel, strict=True):
            assert a.dtype == b.dtype and np.array_equal(a, b)
        return parallel


@pytest.fixture
def seen(monkeypatch):
    """Within the test, `apply` decodes step and class blocks with both, and uses the parallel answer."""
    watch = Seen()
    monkeypatch.setattr(codings, "decode", watch.decode)
    monkeypatch.setattr(codings, "resolve", watch.resolve)
    return watch


@pytest.mark.parametrize(("patch", "result"), PATCHES.items())
def test_golden_patches(golden, same, seen, patch, result):
    folder = golden / "patches"
    base = "dtypes-old" if result.startswith("dtypes") else "old"
    parsed = update.parse((folder / f"{patch}.patch.safetensors").read_bytes())
    known = parsed.inventory
    old = inventory.canonical(known, safetensors_file.read_checkpoint(folder / f"{base}.safetensors"))
    new = safetensors_file.read_checkpoint(folder / f"{result}.safetensors")
    same(apply([parsed], known, old), inventory.canonical(known, new))
    groups = update.parse_table(parsed, known).groups
    joint = {
        known.tensors[group.tensor].width
        for group in groups
        for block in group.blocks
        if len(block.members) > 1
    }
    assert seen.blocks and (patch.startswith("dtypes") <= (joint == {1, 2, 4, 8}))


@pytest.mark.parametrize("coding", ["step", "class"])
@pytest.mark.parametrize("number", [1, 2])
def test_parts_of_the_golden_run(golden, same, seen, coding, number):
    """With uncertain elements, in joint blocks."""
    run = catalog.Run(golden / "run", golden / "base")
    states = [
        inventory.canonical(
            run.inventory,
            safetensors_file.read_checkpoint(golden / "run.states" / f"{n:08d}.safetensors"),
        )
        for n in (number - 1, number)
    ]
    same(apply(run.parts(number)[coding], run.inventory, states[0]), states[1])
    assert seen.residues > 0


def weights(random, dtype, count):
    """Bits whose keys are spread as those of weights are: few small ones."""
    width = 8 * unsigned(dtype).itemsize
    keys = np.maximum(0, 120 - random.geometric(0.5, count)).astype("<u8")
    noise = random.integers(0, 1 << 64, count, dtype="<u8")
    low = np.uint64(width - 9) if width > 8 else np.uint64(0)
    bits = keys << low if width > 8 else keys >> np.uint64(1)
    return (bits | (noise & ((np.uint64(1) << low) - np.uint64(1)))).astype(unsigned(dtype))


def stepped(random, bits, share):
    """Changes by one step mostly, more often where the key is small, some by anything."""
    width = 8 * bits.dtype.itemsize
    keys = (bits.astype("<u8") << np.uint64(1)) >> np.uint64(width - 8) & np.uint64(0xFF)
    chance = np.minimum(1, share * np.exp2(118 - keys.astype(float))) if share < 0.5 else share
    places = np.flatnonzero(random.random(bits.size) < chance)
    one = bits.dtype.type(1)
    new = bits.copy()
    new[places] = np.where(random.random(places.size) < 0.5, bits[places] + one, bits[places] - one)
    jumps = places[random.random(places.size) < 0.05]
    new[jumps] = random.integers(0, 1 << width, jumps.size, dtype=bits.dtype)
    return new


@pytest.mark.parametrize("coding", ["step", "class"])
@pytest.mark.parametrize("share", [0.00002, 0.003, 0.03, 0.3, 0.9])
def test_random_checkpoints_of_the_command(tmp_path, same, seen, command, coding, share):
    """Each width; blocks alone and joint, from one changed element to more than half."""
    random = np.random.default_rng([17, int(share * 100000)])
    sizes = {"alone": 30000, "some": 3000, "few": 300, "joint.a": 70, "joint.b": 50}
    old = {
        f"{name}.{dtype}": Tensor(dtype, weights(random, dtype, size))
        for dtype in DTYPES
        for name, size in sizes.items()
    }
    new = {name: Tensor(tensor.dtype, stepped(random, tensor.bits, share)) for name, tensor in old.items()}
    for dtype in DTYPES:  # each width has a change, however small the share
        new[f"few.{dtype}"].bits[5] = old[f"few.{dtype}"].bits[5] ^ unsigned(dtype).type(1)
    for name, checkpoint in (("old", old), ("new", new)):
        (tmp_path / f"{name}.safetensors").write_bytes(serialize(checkpoint))
    patch = tmp_path / "patch.safetensors"
    pair = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    command("diff", *pair, "-o", patch, "--coding", coding)
    parsed = update.parse(patch.read_bytes())
    known = parsed.inventory
    found = apply([parsed], known, inventory.canonical(known, old))
    command("apply", pair[0], patch, "-o", tmp_path / "out.safetensors")
    theirs = safetensors_file.read_checkpoint(tmp_path / "out.safetensors")
    same(found, inventory.canonical(known, theirs))
    assert {kind[1] for kind in seen.kinds} == {1, 2, 4, 8}
    assert any(kind[2] == (share > 0.001) for kind in seen.kinds)  # few changes are sent plain
    if coding == "class" and 0.003 <= share <= 0.3:
        assert any(kind[3] for kind in seen.kinds)


@pytest.mark.parametrize(
    ("golden_bytes", "shape"),
    [
        (STEPS, (STEP, 400, 2, 90, 3)),
        (VARINTS, (STEP, 1 << 21, 4, 2, 1)),
        (CLASSES, (CLASS, 4096, 2, 169, 2)),
    ],
)
def test_the_golden_streams_whole_damaged_and_cut_off(golden_bytes, shape):
    """Whatever the bytes: the same lists, or corrupt for both."""
    section, stream = (bytes.fromhex(text) for text in golden_bytes)
    tables = codings.open_tables(section)
    base = filler(4096)
    refused = 0
    assert agree(tables, *shape, stream, base) is not None
    for at in range(len(stream)):
        assert agree(tables, *shape, stream[:at], base) is None
        damaged = bytearray(stream)
        damaged[at] ^= 1 << at % 8
        refused += agree(tables, *shape, bytes(damaged), base) is None
    assert agree(tables, *shape, stream + b"\0", base) is None
    assert refused > 0


def varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def plain_stream(random, form, elements, width, changed, uncertain):
    """A plain step stream of random places and steps."""
    places = random.permutation(elements)
    mine, unsure = (np.sort(part) for part in np.split(places[: changed + uncertain], [changed]))

    def gaps(positions):
        return np.diff(positions, prepend=-1) - 1

    if form >= 254:
        out = np.packbits(np.isin(np.arange(elements), mine), bitorder="little").tobytes()
    else:
        listed = np.setdiff1d(np.arange(elements), mine) if 2 * changed > elements else mine
        out = b"".join(varint(int(gap)) for gap in gaps(listed))
    if form % 2 == 0:
        out += random.bytes(width * changed)
    else:
        bits = random.integers(1, 8 * width + 1, changed)
        out += b"".join(varint(int.from_bytes(random.bytes(8), "little") >> 64 - int(n)) for n in bits)
    for gap in gaps(unsure):
        raw = int(random.integers(2))
        out += varint(2 * int(gap) + raw) + (random.bytes(width) if raw else bytes([random.integers(4)]))
    return bytes([form]) + out


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("form", [0, 1, 254, 255])
def test_plain_streams_of_every_form(form, width):
    """Long and short ones, with uncertain elements of both kinds; then each with damage."""
    random = np.random.default_rng([23, form, width])
    tables = codings.open_tables(b"")
    for elements, changed, uncertain in ((1, 1, 0), (1, 0, 1), (700, 30, 40), (700, 600, 9), (90000, 5, 60)):
        stream = plain_stream(random, form, elements, width, changed, uncertain)
        block = tables, STEP, elements, width, changed, uncertain
        found = agree(*block, stream)
        assert found is not None and (found[0].size, found[2].size) == (changed, uncertain)
        for _ in range(20):
            damaged = bytearray(stream)
            damaged[random.integers(len(stream))] ^= 1 << int(random.integers(8))
            agree(*block, bytes(damaged))
            agree(*block, stream[: random.integers(len(stream))])


def test_damaged_blocks_of_the_golden_run(golden, seen):
    """Streams with escapes and uncertain elements, of classes too: a changed bit is the same to both."""
    test_parts_of_the_golden_run(golden, lambda *states: None, seen, "class", 1)
    test_parts_of_the_golden_run(golden, lambda *states: None, seen, "step", 2)
    random = np.random.default_rng(29)
    verdicts = []
    for *block, stream, base in seen.blocks:
        for _ in range(24):
            damaged = bytearray(stream)
            if damaged:
                damaged[random.integers(len(damaged))] ^= 1 << int(random.integers(8))
            verdicts.append(agree(*block, bytes(damaged), base) is None)
    assert any(verdicts)


@pytest.mark.parametrize("coding", ["step", "class"])
def test_lines_executed_are_bounded_by_rows(tmp_path, command, coding):
    """No loop over elements: lines run are those of the rows of symbols, and a constant."""
    random = np.random.default_rng(31)
    old = {"w": Tensor("BF16", weights(random, "BF16", 400_000))}
    new = {"w": Tensor("BF16", stepped(random, old["w"].bits, 0.1))}
    for name, checkpoint in (("old", old), ("new", new)):
        (tmp_path / f"{name}.safetensors").write_bytes(serialize(checkpoint))
    patch = tmp_path / "patch.safetensors"
    command(
        "diff", tmp_path / "old.safetensors", tmp_path / "new.safetensors", "-o", patch, "--coding", coding
    )
    parsed = update.parse(patch.read_bytes())
    (group,) = update.parse_table(parsed, parsed.inventory).groups
    (block,) = group.blocks
    stream = parsed.blocks[: block.bytes - 4]
    assert 2 <= stream[0] < 254 and block.changed > 20_000
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename != parallel_decoder.__file__:
            return None
        lines += event == "line"
        return trace

    tables = codings.open_tables(parsed.entropy)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = parallel_decoder.decode(
            tables, block.coding, block.elements, 2, block.changed, block.uncertain, stream, old["w"].bits
        )
    finally:
        sys.settrace(before)
    places = np.flatnonzero(old["w"].bits != new["w"].bits)
    assert np.array_equal(found[0], places)
    assert (found[5].size > 1) == (coding == "class")
    escapes = int((~np.isin(found[1], (1, 0xFFFF))).sum())
    segments = codings.MAX_CLASSES + 2
    rows = (block.changed + escapes) // 16 + segments
    assert lines < 12 * rows + 500 < block.changed


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_residue_of_every_kind_of_value(width):
    """Both sides of zero and the ends of the ordinal order among them."""
    kind = np.dtype(f"<u{width}")
    top = 1 << 8 * width - 1
    edges = [0, 1, 2, top - 2, top - 1, top, top + 1, top + 2, 2 * top - 2, 2 * top - 1]
    old = np.repeat(np.array(edges, "<u8").astype(kind), 5)
    residues = np.tile(np.array([0, 1, 2, 3, 0xFF], "u1"), len(edges))
    given = np.arange(old.size, dtype="<u8").astype(kind)
    block = STEP, given, residues, given, old, old
    for plain, parallel in zip(plain_resolve(*block), parallel_decoder.resolve(*block), strict=True):
        assert plain.dtype == parallel.dtype and np.array_equal(plain, parallel)
