"""Altered patches whose hashes were mended: the reader and the library accept the same ones.

So what the pages allow or refuse beyond the hashes is the same in both.
"""

from __future__ import annotations

import hashlib
import json
import zlib

import deltawire
import digest
import inventory
import numpy as np
import pytest
import safetensors_file
import update
import xxhash
from apply import apply
from block_table import DIGEST_IS_BLOCKS, WHOLE
from codings import Corrupt, check
from wire import Unsupported, compact


class Patch:
    """A patch taken apart; `file()` puts it together with a content hash that fits."""

    def __init__(self, data: bytes) -> None:
        container = safetensors_file.parse(data)
        self.metadata = dict(container.metadata)
        self.sections = {name: container.bytes_of(name) for name in container.entries}
        self.dtype = "U8"
        self.shape = None  # of the first section, instead of its size
        self.tail = b" "
        self.extra = ""  # members of each entry
        self.parsed = update.parse(data)

    def replace_in_table(self, old: int, new: int) -> None:
        table = self.sections["deltawire.table"]
        before = old.to_bytes(8, "little")
        assert table.count(before) == 1
        self.sections["deltawire.table"] = table.replace(before, new.to_bytes(8, "little"))

    def set_entropy(self, data: bytes) -> None:
        before = self.sections["deltawire.entropy"]
        assert len(data) == len(before)
        self.sections["deltawire.entropy"] = data
        self.replace_in_table(xxhash.xxh3_64_intdigest(before), xxhash.xxh3_64_intdigest(data))

    def set_block(self, block, data: bytes) -> None:
        blocks = self.sections["deltawire.blocks"]
        assert len(data) == block.bytes
        self.sections["deltawire.blocks"] = (
            blocks[: block.offset] + data + blocks[block.offset + block.bytes :]
        )
        self.replace_in_table(block.hash, xxhash.xxh3_64_intdigest(data))

    def set_inventory(self, text: bytes, packed: bytes | None = None) -> None:
        self.sections["deltawire.inventory"] = varint(len(text)) + (packed or zlib.compress(text))

    def file(self) -> bytes:
        entries, at, members = {}, 0, []
        for name, data in self.sections.items():
            shape = [len(data)]
            if self.shape is not None and not entries:
                shape = self.shape
            entries[name] = safetensors_file.Entry(self.dtype, tuple(shape), at, at + len(data))
            members.append(
                f'{compact(name)}:{{"dtype":"{self.dtype}","shape":{compact(shape)},'
                f'"data_offsets":[{at},{at + len(data)}]{self.extra}}}'
            )
            at += len(data)
        data = b"".join(self.sections.values())
        metadata = dict(self.metadata)
        if "content" in metadata:
            metadata["content"] = update.content_hash(safetensors_file.Container(metadata, entries, data, 0))
        header = "{" + ",".join([f'"__metadata__":{json.dumps(metadata)}', *members]) + "}"
        header = header.encode() + self.tail
        return len(header).to_bytes(8, "little") + header + data


def varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


@pytest.fixture
def verdict(golden, tmp_path):
    """Asserts that both think the same of a file; whether they accept it."""
    old = safetensors_file.read_checkpoint(golden / "patches/old.safetensors")

    def compare(data: bytes, what: str) -> bool:
        try:
            parsed = update.parse(data)
            check(parsed.inventory is not None, "not a standalone patch")
            state = apply([parsed], parsed.inventory, inventory.canonical(parsed.inventory, old))
            reader = "accepted"
        except (Corrupt, Unsupported) as error:
            state, reader = None, str(error)
        (tmp_path / "patch").write_bytes(data)
        out = tmp_path / "out"
        try:
            deltawire.apply(golden / "patches/old.safetensors", tmp_path / "patch", out)
            library = "accepted"
        except deltawire.Error as error:
            library = str(error)
        assert (reader == "accepted") == (library == "accepted"), (
            f"{what}\nreader: {reader}\nlibrary: {library}"
        )
        if state is not None:
            found = safetensors_file.read_checkpoint(out)
            assert all(np.array_equal(found[name].bits, bits) for name, bits in state.items()), what
            out.unlink()
        return state is not None

    return compare


@pytest.fixture
def patch(golden):
    return lambda name="step": Patch((golden / f"patches/{name}.patch.safetensors").read_bytes())


METADATA = [
    ("number", "00", False),
    ("number", "+1", False),
    ("number", "1", True),
    ("number", "18446744073709551615", True),
    ("number", "18446744073709551616", False),
    ("number", "", False),
    ("number", "none", False),
    ("base", "0", False),
    ("run", "", False),
    ("run", "a\nb", False),
    ("run", "a\x7fb", False),
    ("run", "ä", True),
    ("run", "é" * 128, True),
    ("run", "é" * 129, False),
    ("writer", "", False),
    ("writer", "a b", False),
    ("writer", "-_Z9", True),
    ("writer", "w" * 65, False),
    ("digest", "0" * 31, False),
    ("inventory", "A" * 64, False),
    ("base_digest", "none", False),
    ("base_digest", "0" * 32, False),
    ("format", "deltawire.manifest", False),
    ("format_version", "0", False),
    ("format_version", "2", False),
    ("format_version", "01", False),
    ("later", "unknown keys are ignored", True),
]


@pytest.mark.parametrize(("key", "value", "accepted"), METADATA)
def test_metadata(patch, verdict, key, value, accepted):
    altered = patch()
    altered.metadata[key] = value
    assert verdict(altered.file(), f"{key}={value!r}") == accepted


@pytest.mark.parametrize("key", update.KEYS)
def test_missing_metadata(patch, verdict, key):
    altered = patch()
    del altered.metadata[key]
    assert not verdict(altered.file(), f"without {key}")


def test_container(patch, verdict):
    for tail, accepted in ((b"", True), (b"\t\r\n ", True), (b"\0", False), (b"{}", False)):
        altered = patch()
        altered.tail = tail
        assert verdict(altered.file(), f"tail {tail}") == accepted
    for extra, accepted in (
        (',"later":[1.5,-1,{}]', True),
        (',"later":' + "[" * 14 + "]" * 14, True),
        (',"later":' + "[" * 15 + "]" * 15, False),
        (',"dtype":"U8"', False),
        (',"later":1,"later":1', False),
    ):
        altered = patch()
        altered.extra = extra
        assert verdict(altered.file(), f"extra {extra}") == accepted
    data = patch().file()
    assert not verdict(data + b"\0", "a byte more")
    assert not verdict(data[:-1], "a byte less")


def test_sections(patch, verdict):
    for change in (
        lambda p: p.sections.update({"deltawire.later": b""}),
        lambda p: p.sections.pop("deltawire.entropy"),
        lambda p: p.sections.pop("deltawire.inventory"),
        lambda p: setattr(p, "dtype", "I8"),
        lambda p: setattr(p, "shape", [1, len(p.sections["deltawire.blocks"])]),
        lambda p: setattr(p, "sections", dict(reversed(p.sections.items()))),
    ):
        altered = patch()
        change(altered)
        assert not verdict(altered.file(), f"sections {list(altered.sections)}")


def test_inventory(patch, verdict):
    text = inventory.serialize(patch().parsed.inventory.cast_rule, patch().parsed.inventory.tensors)
    altered = patch()
    altered.set_inventory(text, zlib.compress(text, 1))
    assert verdict(altered.file(), "another compression level")
    for what, packed in (
        ("trailing bytes", zlib.compress(text) + b"\0"),
        ("cut off", zlib.compress(text)[:-1]),
        ("raw deflate", zlib.compress(text)[2:-4]),
        ("longer than stated", zlib.compress(text + b" ")),
        ("shorter than stated", zlib.compress(text[:-1])),
    ):
        altered = patch()
        altered.set_inventory(text, packed)
        assert not verdict(altered.file(), what)
    for what, other in (
        ("space", text.replace(b":[", b": [", 1)),
        ("unknown field", text.replace(b'"tensors"', b'"t":1,"tensors"')),
        ("default spelled", text.replace(b'"dtype"', b'"cast":"none","dtype"', 1)),
        ("escape", text.replace(b'"bf16"', b'"\\u0062f16"')),
    ):
        altered = patch()
        altered.set_inventory(other)
        altered.metadata["inventory"] = hashlib.sha256(other).hexdigest()
        assert other != text and not verdict(altered.file(), what)


@pytest.mark.parametrize("name", ["class", "step", "absolute", "all"])
def test_altered_table(patch, verdict, name):
    intact = patch(name)
    table = intact.sections["deltawire.table"]
    for at in range(len(table)):
        altered = patch(name)
        bit = 1 << (at * 5 % 8)
        altered.sections["deltawire.table"] = table[:at] + bytes([table[at] ^ bit]) + table[at + 1 :]
        # Without the flag that a tensor's digest is its block's, the table says less and is still right.
        if verdict(altered.file(), f"table byte {at} ^ {bit}"):
            assert (table[at], bit) == (WHOLE | DIGEST_IS_BLOCKS, DIGEST_IS_BLOCKS)


@pytest.mark.parametrize("name", ["class", "step", "absolute", "all"])
def test_altered_streams(patch, verdict, name):
    random = np.random.default_rng(1)
    parsed = patch(name).parsed
    blocks = [b for group in update.parse_table(parsed, parsed.inventory).groups for b in group.blocks]
    for _ in range(60):
        altered = patch(name)
        block = blocks[random.integers(len(blocks))]
        data = bytearray(parsed.blocks[block.offset : block.offset + block.bytes])
        at = int(random.integers(len(data)))
        data[at] ^= 1 << int(random.integers(8))
        altered.set_block(block, bytes(data))
        verdict(altered.file(), f"byte {at} of a block")
    for at in range(len(parsed.entropy)):
        altered = patch(name)
        data = bytearray(parsed.entropy)
        data[at] ^= 1 << at % 8
        altered.set_entropy(bytes(data))
        verdict(altered.file(), f"entropy byte {at}")


def test_another_digest_of_the_version(patch, verdict):
    altered = patch()
    shifted = digest.add(digest.parse(altered.metadata["digest"]), (1, 0))
    altered.metadata["digest"] = digest.text(shifted)
    assert not verdict(altered.file(), "digest")
