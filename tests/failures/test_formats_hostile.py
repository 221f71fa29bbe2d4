"""Hostile and damaged bytes in a run's folder (rows FMT of docs/failures.md): refused, untouched."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltawire as dw
import numpy as np
import pytest
import torch
from craft import RunFolder, compact, joined, plain_absolute, sealed
from oracle import bits, engine_of
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from small_models import Bag
from xxh3 import xxh3_128

ELEMENTS = 48


class OneTensor:
    """A run of one tensor "w" at version 1, and an engine that holds version 0."""

    def __init__(self, url: str, coding: str = "absolute") -> None:
        self.url = url
        self.run = RunFolder(url)
        self.model = Bag({"w": torch.randn(ELEMENTS).to(torch.bfloat16)})
        self.engine = engine_of(self.model)
        publisher = dw.Publisher(self.model, None, url, codings=[coding], detector="snapshot")
        dw.Subscriber(url, self.engine).update()
        self.before = bits(self.engine.w).clone()
        self.model.w.data.view(torch.int16)[::5] += 1
        self.after = bits(self.model.w).clone()
        self.positions = list(range(0, ELEMENTS, 5))
        self.values = [int(x) & 0xFFFF for x in self.after[::5]]
        publisher.publish()
        publisher.close()

    def update(self) -> dw.Version:
        with dw.Subscriber(self.url, self.engine) as subscriber:
            return subscriber.update()

    def refused(self, codes: tuple[str, ...] = ("corrupt",), mentions: str = "") -> dw.Error:
        with pytest.raises(dw.Error) as caught:
            self.update()
        assert caught.value.code in codes, caught.value
        assert mentions in str(caught.value)
        assert torch.equal(bits(self.engine.w), self.before)
        return caught.value

    def accepted(self) -> None:
        assert self.update().number == 1
        assert torch.equal(bits(self.engine.w), self.after)


def test_FMT_01_crafted_block_that_is_right_applies(url: str) -> None:
    """The tool that the tests below use makes files that are accepted when they say the truth."""
    one = OneTensor(url)
    one.run.set_block(1, plain_absolute(one.positions, one.values), len(one.positions))
    one.accepted()


@pytest.mark.parametrize(
    ("positions", "what"),
    [
        ([ELEMENTS], "numel"),
        ([0, ELEMENTS], "numel after others"),
        ([2**31 - 1], "2^31-1"),
        ([2**32 - 1], "2^32-1"),
        ([2**32], "2^32"),
        ([2**32 + 5], "2^32+5 would wrap to 5"),
        ([2**63], "2^63"),
        ([-1], "negative"),
        ([7, 3], "unsorted"),
        ([7, 7], "duplicate"),
        ([7, 2**32 + 7], "duplicate after a wrap at 2^32"),
        ([7, 2**32 + 3], "unsorted after a wrap at 2^32"),
    ],
)
def test_FMT_01_positions_outside_the_tensor(url: str, positions: list[int], what: str) -> None:
    one = OneTensor(url)
    one.run.set_block(1, plain_absolute(positions, [0x3F80] * len(positions)), len(positions))
    one.refused(mentions="w")


def test_FMT_01_tensor_index_outside_the_inventory(url: str) -> None:
    one = OneTensor(url)
    stream = plain_absolute(one.positions, one.values)
    for tensor in (1, 2**32, 2**64 - 1):
        one.run.set_block(1, stream, len(one.positions), tensor=tensor)
        one.refused()


def test_FMT_02_empty_and_short_parts(url: str) -> None:
    one = OneTensor(url)
    for size in (0, 7, 8):
        one.run.set_part(1, b"\0" * size)
        one.refused()
    one.run.set_part(1, struct.pack("<Q", 2) + b"{}")
    one.refused()


def test_FMT_02_header_without_tensors(place: Path) -> None:
    """For a checkpoint it is a valid file without tensors, for safetensors as for us."""
    file = place / "empty.safetensors"
    file.write_bytes(struct.pack("<Q", 2) + b"{}")
    assert load_file(file) == {}
    assert dw.diff(file, file, place / "patch").total == 0
    assert dw.apply(file, place / "patch", place / "out.safetensors").sent == 0
    assert load_file(place / "out.safetensors") == {}


@pytest.mark.parametrize("extra", [1, 4096])
def test_FMT_03_bytes_after_the_last_tensor(url: str, place: Path, extra: int) -> None:
    one = OneTensor(url)
    part = one.run.part_path(1).read_bytes()
    one.run.set_part(1, part + b"\0" * extra)
    one.refused()
    # A full version.
    anchor = one.run.anchor_path(0)
    manifest = json.loads((anchor / "manifest.json").read_bytes())
    file = anchor / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"\0" * extra)
    for entry in manifest["files"]:
        if entry["name"] == file.name:
            entry["bytes"] += extra
            entry["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (anchor / "manifest.json").write_bytes(sealed(manifest))
    engine = engine_of(one.model)
    held = bits(engine.w).clone()
    with pytest.raises(dw.Error) as caught:
        dw.Subscriber(url, engine).update(0)
    assert caught.value.code == "corrupt" and torch.equal(bits(engine.w), held)
    # A base.
    save_file({"w": one.model.w.detach()}, place / "base.safetensors")
    (place / "base.safetensors").write_bytes((place / "base.safetensors").read_bytes() + b"\0" * extra)
    with pytest.raises(dw.Error) as caught:
        dw.Publisher(one.model, None, str(place / "other"), base=place / "base.safetensors")
    assert caught.value.code == "corrupt" and "base.safetensors" in str(caught.value)


def test_FMT_04_positions_beyond_2_to_the_31(url: str) -> None:
    """A tensor of 2^31 + 8 elements, 4 GiB and 16 bytes. Its memory is zero pages, its run begins by hand:
    all zeros have the digest 0, so version 0 needs no file of that size."""
    n = 2**31 + 8
    tensor = Bag({"w": torch.zeros(16, dtype=torch.bfloat16)})
    dw.Publisher(tensor, None, url).close()
    run = RunFolder(url)
    inventory = json.loads(run.inventory_path().read_bytes())
    # Not the grid that a new run would have: whoever resumes takes over the run's.
    inventory["tensors"][0] |= {"shape": [n], "grid": [0, 8]}
    text = compact(inventory).encode()
    digest = hashlib.sha256(text).hexdigest()
    (run.path / f"inventory-{digest}.json").write_bytes(text)
    manifest = run.manifest(0)
    del manifest["tensor_digests"]
    run.write_manifest(
        0, {**manifest, "inventory": digest, "base": {"kind": "checkpoint", "digest": "0" * 32}}
    )

    # numpy takes zero pages from the system; torch.zeros would write them.
    zeros = [torch.from_numpy(np.zeros(n, dtype=np.int16)) for _ in range(2)]
    model, engine = (Bag({"w": each.view(torch.bfloat16)}) for each in zeros)
    with dw.Publisher(model, None, url, resume=True) as publisher, dw.Subscriber(url, engine) as subscriber:
        assert subscriber.update().number == 1 and publisher.version.sent == 0
        wanted = torch.tensor([0, 2**30, 2**31 - 1, 2**31, 2**31 + 7])
        model.w.data.view(torch.int16)[wanted] = torch.arange(1, 6, dtype=torch.int16)
        publisher.publish()
        subscriber.update()
    have = bits(engine.w)
    assert have[wanted].tolist() == [1, 2, 3, 4, 5]
    # Nothing elsewhere: only these blocks were written at all, so only near them can anything stand.
    for position in wanted.tolist():
        near = slice(max(0, position - 2**21), position + 2**21)
        assert int(have[near].count_nonzero()) == int(((wanted >= near.start) & (wanted < near.stop)).sum())


def _drop_value(one: OneTensor) -> tuple[bytes, int]:
    return plain_absolute(one.positions, one.values[:-1]), len(one.positions)


def _drop_two_indices(one: OneTensor) -> tuple[bytes, int]:
    return plain_absolute(one.positions[:-2], one.values), len(one.positions)


def _count(by: int) -> Callable[[OneTensor], tuple[bytes, int]]:
    return lambda one: (plain_absolute(one.positions, one.values), len(one.positions) + by)


@pytest.mark.parametrize("damage", [_drop_value, _drop_two_indices, _count(1), _count(-1), _count(2**40)])
def test_FMT_05_lists_of_unequal_length(url: str, damage: Callable[[OneTensor], tuple[bytes, int]]) -> None:
    one = OneTensor(url)
    stream, changed = damage(one)
    one.run.set_block(1, stream, changed)
    one.refused()


def _reference_accepts(path: Path) -> bool:
    try:
        with safe_open(path, "np") as file:
            return file.keys() is not None
    except (SafetensorError, OSError):
        return False


def test_FMT_06_verdicts_of_the_reference_reader(place: Path) -> None:
    entry: dict[str, Any] = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    file = place / "m.safetensors"
    data = b"abcd"
    good = joined({"a": entry}, data)

    def with_length(size: int) -> bytes:
        return struct.pack("<Q", size) + good[8:]

    def text(header: str, data: bytes = data) -> bytes:
        return struct.pack("<Q", len(header)) + header.encode() + data

    both = {
        "a": {**entry, "shape": [3], "data_offsets": [0, 3]},
        "b": {**entry, "shape": [2], "data_offsets": [2, 4]},
    }
    hole = {
        "a": {**entry, "shape": [1], "data_offsets": [0, 1]},
        "b": {**entry, "shape": [2], "data_offsets": [2, 4]},
    }
    bad = {
        "length 0": with_length(0),
        "length 1": with_length(1),
        "length one past the end": with_length(len(good) - 7),
        "length 10^8 + 1": with_length(10**8 + 1),
        "length 2^63": with_length(2**63),
        "length 2^64-8": with_length(2**64 - 8),
        "length 2^64-1": with_length(2**64 - 1),
        "overlap": joined(both, data),
        "hole": joined(hole, data),
        "reversed": joined({"a": {**entry, "data_offsets": [4, 0]}}, data),
        "past the end": joined({"a": {**entry, "data_offsets": [0, 5], "shape": [5]}}, data),
        "product overflows": joined({"a": {**entry, "shape": [2**33, 2**33]}}, data),
        "product overflows beside 0": joined(
            {"a": {**entry, "shape": [2**33, 2**33, 0], "data_offsets": [0, 0]}}, b""
        ),
        "size differs": joined({"a": {**entry, "shape": [3]}}, data),
        "negative extent": joined({"a": {**entry, "shape": [-4]}}, data),
        "unknown dtype": joined({"a": {**entry, "dtype": "Q8"}}, data),
        "not an object": text("[]"),
        "text after": text(json.dumps({"a": entry}) + "x"),
        "deep": text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
        "duplicate tensor": text(f'{{"a":{compact(entry)},"a":{compact(entry)}}}'),
        "duplicate key": text('{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}'),
        "duplicate after unescaping": text('{"a":ENTRY,"\\u0061":ENTRY}'.replace("ENTRY", compact(entry))),
        "no utf-8": struct.pack("<Q", 2) + b"\xff\xfe" + data,
    }
    file.write_bytes(good)
    assert _reference_accepts(file)
    dw.diff(file, file, place / "p")
    for name, content in bad.items():
        file.write_bytes(content)
        with pytest.raises(dw.Error) as caught:
            dw.diff(file, file, place / "q")
        assert caught.value.code in ("corrupt", "unsupported"), name
        assert "m.safetensors" in str(caught.value), name
        # The reference keeps the last of two equal keys; everything else it refuses as well.
        if not name.startswith("duplicate"):
            assert not _reference_accepts(file), name
        with pytest.raises(dw.Error):
            dw.Subscriber(str(place / "run"), file)


def _mutate_headers(folder: str, seed: int, rounds: int, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    rng = random.Random(seed)
    file = Path(folder, "f.safetensors")
    entries = {
        "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
        "c": {"dtype": "I64", "shape": [0, 9], "data_offsets": [16, 16]},
    }
    good = joined({"__metadata__": {"k": "v"}, **entries}, bytes(range(16)))
    numbers = [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 8, 2**64 - 1, 10**8, 10**8 + 1]
    accepted = 0
    for _ in range(rounds):
        content = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(content))
            kind = rng.randrange(5)
            if kind == 0:
                content[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                content[at] = rng.choice(b'0123456789"[]{},:-eE. ')
            elif kind == 2:
                del content[at : at + rng.randint(1, 9)]
            elif kind == 3:
                content[at:at] = str(rng.choice(numbers)).encode()
            else:
                content[:8] = struct.pack("<Q", rng.choice(numbers))
        file.write_bytes(content)
        try:
            dw._core.checkpoint_tensors(str(file))
        except dw.Error as error:
            assert error.code in ("corrupt", "unsupported"), error
            continue
        accepted += 1
        # Stricter than the reference, never laxer.
        assert _reference_accepts(file), bytes(content)
    assert accepted > 0


def test_FMT_06_mutated_headers_under_an_address_space_limit(place: Path) -> None:
    seed = 6
    print("seed", seed)
    size = Path("/proc/self/statm").read_text().split()[0]
    # The forked test process with its libraries, and 512 MiB for everything that a reader may want.
    limit = int(size) * resource.getpagesize() + (512 << 20)
    child = multiprocessing.get_context("fork").Process(
        target=_mutate_headers, args=(str(place), seed, 20_000, limit)
    )
    child.start()
    child.join(120)
    assert child.exitcode == 0


# Damage that nobody fixed up ----------------------------------------------------------------------


def _objects(run: RunFolder) -> dict[str, Path]:
    return {
        "update": run.part_path(1),
        "manifest": run.manifest_path(1),
        "base manifest": run.manifest_path(0),
        "inventory": run.inventory_path(),
    }


@pytest.mark.parametrize("name", ["update", "manifest", "base manifest", "inventory"])
def test_truncation_at_every_length(url: str, name: str) -> None:
    one = OneTensor(url, coding="step")
    path = _objects(one.run)[name]
    whole = path.read_bytes()
    # Without a way round what is damaged.
    (one.run.anchor_path(0) / "manifest.json").unlink()
    kept = dw.Subscriber(url, one.engine)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(dw.Error) as caught:
            kept.update()
        assert caught.value.code == "corrupt", caught.value
        assert torch.equal(bits(one.engine.w), one.before)
    path.write_bytes(whole)
    assert kept.update().number == 1
    assert torch.equal(bits(one.engine.w), one.after)
    one.engine.w.data.view(torch.int16).copy_(one.before)
    one.accepted()


@pytest.mark.parametrize("name", ["update", "manifest", "base manifest", "inventory"])
def test_any_flipped_byte_is_an_error_or_changes_nothing(url: str, name: str) -> None:
    one = OneTensor(url, coding="step")
    path = _objects(one.run)[name]
    whole = path.read_bytes()
    (one.run.anchor_path(0) / "manifest.json").unlink()
    rng = random.Random(7)
    kept = dw.Subscriber(url, one.engine)
    refused = 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= rng.randint(1, 255)
        path.write_bytes(damaged)
        try:
            kept.update()
        except dw.Error:
            refused += 1
            assert torch.equal(bits(one.engine.w), one.before), at
        else:
            # Only what does not change the meaning.
            assert torch.equal(bits(one.engine.w), one.after), at
            one.engine.w.data.view(torch.int16).copy_(one.before)
            kept = dw.Subscriber(url, one.engine)
    assert refused == len(whole)
    path.write_bytes(whole)
    assert kept.update().number == 1
    assert torch.equal(bits(one.engine.w), one.after)


def test_any_flipped_byte_of_an_anchor(url: str) -> None:
    """The bytes of an anchor's tensors are proved by digest, those around them by grammar."""
    one = OneTensor(url)
    rng = random.Random(8)
    wanted = bits(one.model.w).clone()
    wanted[::5] -= 1
    for path in sorted(one.run.anchor_path(0).iterdir()):
        whole = path.read_bytes()
        for at in range(len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= rng.randint(1, 255)
            path.write_bytes(damaged)
            engine = engine_of(one.model)
            held = bits(engine.w).clone()
            try:
                dw.Subscriber(url, engine).update(0)
            except dw.Error:
                assert torch.equal(bits(engine.w), held), (path, at)
            else:
                assert torch.equal(bits(engine.w), wanted), (path, at)
        path.write_bytes(whole)
    engine = engine_of(one.model)
    dw.Subscriber(url, engine).update(0)
    assert torch.equal(bits(engine.w), wanted)


# Well-formed, but not for this receiver -----------------------------------------------------------


def test_intact_bytes_with_a_wrong_result(url: str) -> None:
    """A detector that missed an element, or hardware at fault: refused before a byte is written."""
    one = OneTensor(url)
    one.run.set_block(1, plain_absolute(one.positions[:-1], one.values[:-1]), len(one.positions) - 1)
    one.refused(("detector_fault",), mentions="w")
    wrong = [value ^ 1 for value in one.values]
    one.run.set_block(1, plain_absolute(one.positions, wrong), len(one.positions))
    one.refused(("detector_fault",), mentions="w")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run", "another"),
        ("number", "7"),
        ("inventory", "0" * 64),
        ("digest", "0" * 32),
        ("base", "none"),
        ("base_digest", "f" * 32),
        ("format", "deltawire.manifest"),
    ],
)
def test_part_that_contradicts_its_manifest(url: str, key: str, value: str) -> None:
    one = OneTensor(url)
    one.run.set_block(1, plain_absolute(one.positions, one.values), len(one.positions), metadata={key: value})
    one.refused(("corrupt", "wrong_run", "wrong_base", "mismatch"))


@pytest.mark.parametrize("version", [0, 2, 9])
@pytest.mark.parametrize("what", ["update", "manifest", "inventory"])
def test_unknown_format_version_is_refused_by_name(url: str, what: str, version: int) -> None:
    one = OneTensor(url)
    if what == "update":
        one.run.set_block(
            1,
            plain_absolute(one.positions, one.values),
            len(one.positions),
            metadata={"format_version": str(version)},
        )
    elif what == "manifest":
        one.run.write_manifest(1, {**one.run.manifest(1), "format_version": version})
    else:
        inventory = json.loads(one.run.inventory_path().read_bytes())
        text = compact({**inventory, "format_version": version}).encode()
        digest = hashlib.sha256(text).hexdigest()
        (one.run.path / f"inventory-{digest}.json").write_bytes(text)
        one.run.write_manifest(1, {**one.run.manifest(1), "inventory": digest})
    error = one.refused(("unsupported",))
    assert f"format version {version}; this build reads version 1; " in str(error)
    assert ("write it again" if version == 0 else "use a build that knows it") in str(error)


@pytest.mark.parametrize(
    "field", ["run", "number", "base", "parts", "digest", "inventory", "counts", "content"]
)
def test_manifest_with_a_duplicate_key(url: str, field: str) -> None:
    one = OneTensor(url)
    text = one.run.manifest_path(1).read_text()
    manifest = json.loads(text)
    doubled = text.replace("{", "{" + compact({field: manifest[field]})[1:-1] + ",", 1)
    if field != "content":
        zeroed = doubled.replace(manifest["content"], "0" * 32)
        doubled = doubled.replace(manifest["content"], xxh3_128(zeroed.encode()))
    one.run.manifest_path(1).write_text(doubled)
    one.refused()


@pytest.mark.parametrize(
    "name", ["../../escape", "/etc/passwd", "updates/../../x", "updates\\x", "", "a\0b", "LATEST"]
)
def test_object_names_stay_inside_the_run(url: str, name: str) -> None:
    one = OneTensor(url)
    manifest = one.run.manifest(1)
    manifest["parts"][0]["name"] = name
    one.run.write_manifest(1, manifest)
    one.refused(("corrupt", "not_found"))


def test_declared_sizes_do_not_allocate(url: str) -> None:
    one = OneTensor(url)
    for size in (2**40, 2**63, 2**64 - 1):
        manifest = one.run.manifest(1)
        manifest["parts"][0]["bytes"] = size
        one.run.write_manifest(1, manifest)
        one.refused()
