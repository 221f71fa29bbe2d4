"""Coding `open`: the independent reader and the command arrive at the same bits, or both refuse the file."""

from __future__ import annotations

import json

import inventory
import numpy as np
import open_patch
import pytest
import safetensors_file
from codings import Corrupt, check
from open_patch import DIGEST_BYTES, DIGESTS, INVENTORY
from safetensors_file import FILE_ORDER, Container, Entry, Tensor, serialize, unsigned
from wire import Unsupported

Checkpoint = dict[str, Tensor]
GOLDEN = {"dtypes-open": ("dtypes-old", "dtypes-new"), "open": ("old", "new"), "open-empty": ("old", "old")}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_patches(golden, tmp_path, same, command, name):
    """What an earlier release wrote."""
    folder = golden / "patches"
    file, (base, result) = folder / f"{name}.patch.safetensors", GOLDEN[name]
    patch = open_patch.parse(file.read_bytes())
    old, new = (
        inventory.canonical(patch.inventory, safetensors_file.read_checkpoint(folder / f"{part}.safetensors"))
        for part in (base, result)
    )
    same(open_patch.apply(patch, patch.inventory, old), new)
    if name == "dtypes-open":
        assert {change.dtype for change in patch.changes.values()} == set(FILE_ORDER)
    command("verify", file)
    command("inspect", file)
    command("apply", folder / f"{base}.safetensors", file, "-o", tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == (folder / f"{result}.safetensors").read_bytes()


def random_bits(random, dtype: str, shape) -> np.ndarray:
    if dtype == "BOOL":
        return random.integers(0, 2, shape, dtype="u1")
    return random.integers(0, 1 << 8 * unsigned(dtype).itemsize, shape, dtype=unsigned(dtype))


def every_dtype(random, share: float) -> tuple[Checkpoint, Checkpoint]:
    """A matrix, a scalar and an empty tensor of each dtype; any bits, in a `share` of the places others."""
    old, new = {}, {}
    for dtype in FILE_ORDER:
        for name, shape in (("w", (19, 23)), ("ü.scalar", ()), ("empty", (3, 0))):
            bits, other = (random_bits(random, dtype, shape) for _ in range(2))
            old[f"{dtype}.{name}"] = Tensor(dtype, bits)
            changed = np.where(random.random(shape) < share, other, bits).astype(unsigned(dtype))
            new[f"{dtype}.{name}"] = Tensor(dtype, changed)
    return old, new


class Case:
    """Two checkpoints on disk, and the open patch between them."""

    def __init__(self, folder, command, old: Checkpoint, new: Checkpoint) -> None:
        self.folder, self.command, self.old, self.new = folder, command, old, new
        self.old_path, self.new_path = self.write("old", old), self.write("new", new)
        self.patch_path = folder / "open.patch.safetensors"
        command("diff", self.old_path, self.new_path, "-o", self.patch_path, "--coding", "open")

    def write(self, name: str, checkpoint: Checkpoint):
        path = self.folder / f"{name}.safetensors"
        path.write_bytes(serialize(checkpoint))
        return path

    def state(self, patch: open_patch.OpenPatch, checkpoint: Checkpoint):
        return inventory.canonical(patch.inventory, checkpoint)

    def read(self, data: bytes):
        """The patch and the state that the reader makes of old and these bytes."""
        patch = open_patch.parse(data)
        check(patch.inventory is not None, "not a standalone patch")
        return patch, open_patch.apply(patch, patch.inventory, self.state(patch, self.old))

    def verdict(self, data: bytes, what: str) -> bool:
        """Whether both accept a file as a patch of old; with the same result, or not at all."""
        try:
            _, state = self.read(data)
            reader = "accepted"
        except (Corrupt, Unsupported) as error:
            state, reader = None, f"{type(error).__name__} {error}"
        path, out = self.folder / "altered.safetensors", self.folder / "altered-out.safetensors"
        path.write_bytes(data)
        said = self.command("apply", self.old_path, path, "-o", out, "--json", code=(0, 1, 3))
        assert out.exists() == (state is not None), f"{what}\nreader: {reader}\ncommand: {said}"
        if state is None:
            return False
        found = safetensors_file.read_checkpoint(out)
        assert all(np.array_equal(found[name].bits, bits) for name, bits in state.items()), what
        out.unlink()
        return True


class File:
    """An open patch taken apart; `file()` puts it together with a content hash that fits."""

    def __init__(self, data: bytes) -> None:
        container = safetensors_file.parse(data)
        self.metadata = dict(container.metadata)
        self.tensors = {
            name: [entry.dtype, list(entry.shape), container.bytes_of(name)]
            for name, entry in container.entries.items()
        }

    def set(self, name: str, dtype: str, words) -> None:
        array = np.asarray(words).astype(unsigned(dtype))
        self.tensors[name] = [dtype, [array.size], array.tobytes()]

    def words(self, name: str) -> np.ndarray:
        dtype, _, data = self.tensors[name]
        return np.frombuffer(data, unsigned(dtype))

    def file(self, mend: bool = True) -> bytes:
        entries, header, at = {}, {}, 0
        for name, (dtype, shape, data) in self.tensors.items():
            entries[name] = Entry(dtype, tuple(shape), at, at + len(data))
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        data = b"".join(tensor[2] for tensor in self.tensors.values())
        metadata = dict(self.metadata)
        if mend:
            metadata["deltawire.content"] = open_patch.content_hash(Container(metadata, entries, data, 0))
        text = json.dumps({"__metadata__": metadata, **header}).encode()
        return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("share", [0, 0.01, 0.2, 1])
def test_every_dtype_written_by_the_command(tmp_path, same, command, share):
    random = np.random.default_rng([37, int(share * 100)])
    case = Case(tmp_path, command, *every_dtype(random, share))
    patch, state = case.read(case.patch_path.read_bytes())
    same(state, case.state(patch, case.new))
    changed = {n: int((case.old[n].bits != case.new[n].bits).sum()) for n in case.old}
    assert {n: c.positions.size for n, c in patch.changes.items()} == {n: k for n, k in changed.items() if k}
    out = tmp_path / "out.safetensors"
    command("apply", case.old_path, case.patch_path, "-o", out)
    assert out.read_bytes() == case.new_path.read_bytes()


@pytest.mark.parametrize("coding", ["class", "step", "absolute", "open"])
def test_converted_from_every_coding_and_back(tmp_path, same, command, coding):
    case = Case(tmp_path, command, *every_dtype(np.random.default_rng(41), 0.1))
    first, second, third = (tmp_path / f"{i}.safetensors" for i in range(3))
    command("diff", case.old_path, case.new_path, "-o", first, "--coding", coding)
    command("convert", first, "--base", case.old_path, "--to", "open", "-o", second)
    patch, state = case.read(second.read_bytes())
    same(state, case.state(patch, case.new))
    command("convert", case.patch_path, "--base", case.old_path, "--to", "checkpoint", "-o", third)
    assert third.read_bytes() == case.new_path.read_bytes()


def test_wide_gaps_and_tensors_of_several_blocks(tmp_path, same, command):
    """Gaps of U16 and U32, and digests of the blocks alone in which something is listed."""
    random = np.random.default_rng(43)
    old = {
        "w": Tensor("U8", random_bits(random, "U8", (8, 1 << 20))),
        "v": Tensor("BF16", np.zeros(70000, "<u2")),
    }
    new = {name: Tensor(tensor.dtype, tensor.bits.copy()) for name, tensor in old.items()}
    for place in (0, 65536, 3, 1 << 20, (8 << 20) - 1):  # the first block and the last
        new["w"].bits.reshape(-1)[place] ^= 1
    new["v"].bits[[0, 65536]] = 1
    case = Case(tmp_path, command, old, new)
    patch, state = case.read(case.patch_path.read_bytes())
    same(state, case.state(patch, new))
    boxes = inventory.grid_boxes(patch.inventory.tensors[1])
    of_w = sum(
        (old["w"].bits != new["w"].bits)[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))].any()
        for box in boxes
    )
    assert len(patch.block_digests) == 1 + of_w and 1 < of_w < len(boxes)
    file = File(case.patch_path.read_bytes())
    assert [file.tensors[name][0] for name in ("v.idx", "w.idx")] == ["U16", "U32"]


@pytest.fixture
def case(tmp_path, command):
    """Small: 16 bits with several changes, 8 bits with one, and what does not change."""
    random = np.random.default_rng(47)
    old = {
        "a": Tensor("BF16", random_bits(random, "BF16", (9, 4))),
        "b": Tensor("F8_E4M3", random_bits(random, "F8_E4M3", 7)),
        "c": Tensor("F32", random_bits(random, "F32", ())),
    }
    new = {name: Tensor(tensor.dtype, tensor.bits.copy()) for name, tensor in old.items()}
    for place, flip in ((2, 1), (3, 0x8000), (30, 0x7F80)):
        new["a"].bits.reshape(-1)[place] ^= np.uint16(flip)
    new["b"].bits[6] ^= np.uint8(2)
    return Case(tmp_path, command, old, new)


def test_truncations_and_flipped_bits_are_errors(case):
    """Or read the same: the JSON's white space and escapes are not covered by the content hash."""
    data = case.patch_path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    intact = case.read(data)
    for size in range(len(data)):
        with pytest.raises(Corrupt):
            open_patch.parse(data[:size])
    for at in range(len(data)):
        for bit in range(8):
            altered = bytearray(data)
            altered[at] ^= 1 << bit
            try:
                patch, state = case.read(bytes(altered))
            except (Corrupt, Unsupported):
                continue
            assert at < header and patch.digest == intact[0].digest
            assert all(np.array_equal(state[name], bits) for name, bits in intact[1].items())


def test_the_command_refuses_the_same_damage(case):
    random = np.random.default_rng(53)
    data = case.patch_path.read_bytes()
    for size in random.integers(len(data), size=6):
        assert not case.verdict(data[:size], f"{size} bytes")
    for at in random.integers(len(data), size=20).tolist():
        altered = bytearray(data)
        altered[at] ^= 1 << at % 8
        case.verdict(bytes(altered), f"byte {at}")
    assert not case.verdict(data + b"\0", "a byte more")


def test_damage_under_a_mended_hash_is_found_by_the_digests(case):
    """Every bit of every index, value and digest, with a content hash that fits."""
    for name, (_, _, data) in File(case.patch_path.read_bytes()).tensors.items():
        if name == INVENTORY:
            continue
        for at in range(8 * len(data)):
            altered = File(case.patch_path.read_bytes())
            bits = bytearray(data)
            bits[at // 8] ^= 1 << at % 8
            altered.tensors[name][2] = bytes(bits)
            with pytest.raises(Corrupt):
                case.read(altered.file())
        assert not case.verdict(altered.file(), f"last bit of {name}")


METADATA = [
    ("model_version", "of people's business", True),
    ("total_changed_elements", "-1", True),
    ("later", "unknown keys are ignored", True),
    ("version", "2", True),
    ("format", "deltawire.update", False),
    ("sparse", "False", False),
    ("encoding", "xor", False),
    ("deltawire.format", "deltawire.update", False),
    ("deltawire.format_version", "7", False),
    ("deltawire.format_version", "01", False),
    ("deltawire.run", "", False),
    ("deltawire.run", "é" * 128, True),
    ("deltawire.number", "01", False),
    ("deltawire.number", "18446744073709551615", True),
    ("deltawire.base", "0", False),
    ("deltawire.writer", "a b", False),
    ("deltawire.inventory", "0" * 64, False),
    ("deltawire.base_digest", "0" * 32, False),
    ("deltawire.base_digest", "none", False),
    ("deltawire.digest", "0" * 32, False),
    ("deltawire.digest", "0" * 31, False),
]


@pytest.mark.parametrize(("key", "value", "accepted"), METADATA)
def test_metadata(case, key, value, accepted):
    altered = File(case.patch_path.read_bytes())
    altered.metadata[key] = value
    assert case.verdict(altered.file(), f"{key}={value!r}") == accepted


def test_the_inventory_inside_is_the_one_that_is_named(case):
    altered = File(case.patch_path.read_bytes())
    altered.metadata["deltawire.inventory"] = "0" * 64
    with pytest.raises(Corrupt, match="not the one that is named"):
        open_patch.parse(altered.file())


def test_missing_metadata(case):
    for key in ("version", "model_version", "sparsity"):
        altered = File(case.patch_path.read_bytes())
        del altered.metadata[key]
        assert case.verdict(altered.file(), f"without {key}")
    for key in ("format", "sparse", "encoding", "deltawire.format", "deltawire.format_version"):
        altered = File(case.patch_path.read_bytes())
        del altered.metadata[key]
        assert not case.verdict(altered.file(), f"without {key}")
    altered = File(case.patch_path.read_bytes())
    del altered.metadata["deltawire.content"]
    assert not case.verdict(altered.file(mend=False), "without content")
    for key in set(open_patch.FIELDS) - {"content"}:
        altered = File(case.patch_path.read_bytes())
        del altered.metadata[f"deltawire.{key}"]
        assert not case.verdict(altered.file(), f"without {key}")


def gaps(*words):
    return lambda f: f.set("a.idx", "U16", words)


def renamed(old, new):
    def change(f):
        f.tensors = {new if name == old else name: tensor for name, tensor in f.tensors.items()}

    return change


def raw(dtype, **words):
    """The positions themselves."""

    def change(f):
        f.metadata["encoding"] = "raw"
        for name, positions in words.items():
            f.set(f"{name}.idx", dtype, np.array(positions, np.int64))

    return change


def raw_with_values(*positions):
    """Whoever does not look at the order arrives at the right bits."""

    def change(f):
        value = dict(zip((2, 3, 30), f.words("a.val").tolist(), strict=True))
        raw("I32", a=positions, b=[6])(f)
        f.set("a.val", "BF16", [value[position] for position in positions])

    return change


def first(*tensors):
    """More tensors, before the others."""

    def change(f):
        others, f.tensors = f.tensors, {}
        for name, dtype, words in tensors:
            f.set(name, dtype, words)
        f.tensors |= others

    return change


def ordered(key):
    """Tensors in another order of the file; those of equal `key` stay as they are."""

    def change(f):
        f.tensors = dict(sorted(f.tensors.items(), key=lambda tensor: key(tensor[0])))

    return change


def digests(change):
    def alter(f):
        f.tensors[DIGESTS][2] = change(f.tensors[DIGESTS][2])
        f.tensors[DIGESTS][1] = [len(f.tensors[DIGESTS][2])]

    return alter


def without(name):
    return lambda f: f.tensors.pop(name)


TENSORS = {
    "nothing": (lambda f: None, True),
    "raw positions": (raw("I32", a=[2, 3, 30], b=[6]), True),
    "gaps wider than they need": (lambda f: f.set("a.idx", "U32", f.words("a.idx")), True),
    "gaps much wider than they need": (lambda f: f.set("a.idx", "U64", f.words("a.idx")), True),
    "names descending": (ordered(lambda name: [name[0] == "d", *(-ord(c) for c in name[:1])]), True),
    "digests before the inventory": (ordered(lambda name: (name[0] == "d", name)), False),
    "digests first": (ordered(lambda name: name != DIGESTS), False),
    "inventory first": (ordered(lambda name: name != INVENTORY), False),
    "entries of nothing": (first(("c.idx", "U16", []), ("c.val", "F32", [])), True),
    "a tensor beside": (first(("a.new", "U8", [1])), False),
    "raw positions of another dtype": (raw("U32", a=[2, 3, 30], b=[6]), False),
    "raw positions that descend": (raw_with_values(30, 3, 2), False),
    "a raw position twice": (raw_with_values(2, 3, 3, 30), False),
    "a negative raw position": (raw("I32", a=[-34, 3, 30], b=[6]), False),
    "gaps called raw": (lambda f: f.metadata.update(encoding="raw"), False),
    "a position behind the tensor": (gaps(2, 0, 33), False),
    "a wrong position": (gaps(2, 0, 27), False),
    # Sums that wrap: the last position would be -6, which is the right element counted from the end.
    "U64 gaps that overflow": (lambda f: f.set("a.idx", "U64", np.array([2, 0, -10], np.int64)), False),
    "gaps of I16": (lambda f: f.tensors["a.idx"].__setitem__(0, "I16"), False),
    "gaps of two dimensions": (lambda f: f.tensors["a.idx"].__setitem__(1, [3, 1]), False),
    "values of two dimensions": (lambda f: f.tensors["a.val"].__setitem__(1, [1, 3]), False),
    "values of another dtype": (lambda f: f.tensors["a.val"].__setitem__(0, "F16"), False),
    "a value too few": (lambda f: f.set("a.val", "BF16", f.words("a.val")[:2]), False),
    "no index": (without("a.idx"), False),
    "no values": (without("b.val"), False),
    "neither": (lambda f: (f.tensors.pop("b.idx"), f.tensors.pop("b.val")), False),
    "no digests": (without(DIGESTS), False),
    "a digest too few": (digests(lambda d: d[:DIGEST_BYTES]), False),
    "a digest too many": (digests(lambda d: d + d[:DIGEST_BYTES]), False),
    "half a digest": (digests(lambda d: d + d[:8]), False),
    "digests in another order": (digests(lambda d: d[DIGEST_BYTES:] + d[:DIGEST_BYTES]), False),
    "digests of another dtype": (lambda f: f.tensors[DIGESTS].__setitem__(0, "I8"), False),
    "no inventory": (without(INVENTORY), False),
    "a tensor that the inventory has not": (
        lambda f: (renamed("b.idx", "d.idx")(f), renamed("b.val", "d.val")(f)),
        False,
    ),
}


@pytest.mark.parametrize("what", TENSORS)
def test_tensors(case, what):
    change, accepted = TENSORS[what]
    altered = File(case.patch_path.read_bytes())
    change(altered)
    assert case.verdict(altered.file(), what) == accepted


def test_another_base_is_refused(case):
    patch = open_patch.parse(case.patch_path.read_bytes())
    with pytest.raises(Corrupt, match="base has digest"):
        open_patch.apply(patch, patch.inventory, case.state(patch, case.new))
    before = case.state(patch, {name: Tensor(t.dtype, t.bits.copy()) for name, t in case.old.items()})
    open_patch.apply(patch, patch.inventory, case.state(patch, case.old))
    assert all(np.array_equal(before[name], case.old[name].bits) for name in before)


def test_parts_of_a_run(tmp_path, same):
    """Without an inventory inside; the run's names what the parts are of."""
    import deltawire
    import torch

    torch.manual_seed(59)
    model = torch.nn.Linear(48, 40)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def served() -> Checkpoint:
        return {
            name: Tensor("BF16", tensor.detach().bfloat16().view(torch.int16).numpy().view("<u2").copy())
            for name, tensor in model.named_parameters()
        }

    states = [served()]
    with deltawire.Publisher(model, optimizer, tmp_path / "run", codings=["class", "open"]) as publisher:
        for _ in range(2):
            model(torch.randn(4, 48)).square().sum().backward()
            optimizer.step()
            publisher.publish()
            states.append(served())
    (text,) = (tmp_path / "run").glob("inventory-*.json")
    known = inventory.parse(text.read_bytes())
    found = []
    for path in sorted((tmp_path / "run" / "updates").glob("*/*part*")):
        data = path.read_bytes()
        if "deltawire.format" in safetensors_file.parse(data).metadata:
            patch = open_patch.parse(data)
            assert patch.inventory is None and patch.base == patch.number - 1
            old, new = (inventory.canonical(known, states[n]) for n in (patch.base, patch.number))
            same(open_patch.apply(patch, known, old), new)
            found.append(patch.number)
    assert found == [1, 2]
