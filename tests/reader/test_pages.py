"""The worked examples of docs/formats, read out of the pages and decoded."""

import hashlib
import json
import re
from pathlib import Path

import block_table
import codings
import digest
import inventory
import manifest
import numpy as np
import pytest
import safetensors_file
import update
import xxhash

PAGES = Path(__file__).resolve().parents[2] / "docs/formats"


def example(page: str, heading: str = "Example") -> str:
    text = (PAGES / page).read_text()
    return re.split(rf"^##+ {heading}\n", text, flags=re.MULTILINE)[1]


def fences(text: str) -> list[str]:
    return re.findall(r"^```\n(.*?)\n```$", text, flags=re.MULTILINE | re.DOTALL)


def hexadecimal(fence: str) -> bytes:
    """The bytes of a commented dump: what stands before two spaces and the comment."""
    return bytes.fromhex(
        "".join(re.split(r"(?<=\S)  +(?![0-9a-f]{2}\b)", line)[0] for line in fence.splitlines())
    )


def inventory_text() -> bytes:
    return fences(example("inventory.md"))[0].replace("\n", "").encode()


def table_bytes() -> bytes:
    return hexadecimal(fences(example("block-table.md"))[0])


def update_bytes() -> bytes:
    header, data = fences(example("update.md"))
    # Broken after commas; the spaces at the end belong to the file.
    header = header.replace("\n", "").encode()
    sections = hexadecimal("\n".join(data.splitlines()[:2]))
    assert data.splitlines()[2].startswith(table_bytes()[:4].hex(" "))
    return len(header).to_bytes(8, "little") + header + sections + table_bytes()


def manifest_text() -> bytes:
    return fences(example("manifest.md"))[0].replace("\n", "").encode()


def test_inventory():
    text = inventory_text()
    parsed = inventory.parse(text)
    (stated,) = re.findall(r"SHA-256 `([0-9a-f]{64})`", example("inventory.md"))
    assert parsed.sha256 == stated
    assert [item.name for item in parsed.tensors] == ["embed.weight", "mlp.weight", "norm.weight"]
    assert parsed.tensors[0].aliases == ("lm_head.weight",) and parsed.tensors[1].grid == (0, 2)
    assert inventory.grid_boxes(parsed.tensors[1]) == [((0, 0), (2, 3)), ((2, 0), (2, 3))]


def test_digest_table():
    data = hexadecimal(fences(example("inventory.md", "Digest table"))[1])
    digests = inventory.parse_digests(data, 2)
    assert digests[1] == "04b63a2e5c743da2819b7c8077840008"
    assert digests[0] == "00000000000000010000000000000002"


def test_block_table():
    table = block_table.parse(table_bytes(), inventory.parse(inventory_text()))
    assert (table.entropy_bytes, [group.tensor for group in table.groups]) == (2, [1, 2])
    (first,), (second,) = (group.blocks for group in table.groups)
    assert first.members == (block_table.Member(1, (2, 0), (2, 3)),)
    assert (first.coding, first.bytes, first.changed, first.uncertain) == (2, 3, 2, 1)
    assert first.after == "00000000000000030000000000000004" and table.groups[0].digest is None
    assert second.members == (block_table.Member(2, (0,), (2,)),)
    assert (second.coding, second.bytes, second.offset) == (0, 8, 3)
    assert table.groups[1].digest == second.after == "00000000000000050000000000000006"


def test_joint_block():
    items = [inventory.Item(name, (), "BF16", (3,), (0, 1), "none") for name in "abcdefg"]
    items[3] = inventory.Item("d", (), "F32", (2,), (0, 1), "none")
    known = inventory.Inventory("", "", tuple(items))
    data = hexadecimal(fences(example("block-table.md", "Example of a joint block"))[0])
    joint, alone = block_table.parse(data, known).groups
    (block,) = joint.blocks
    assert [member.tensor for member in block.members] == [0, 1, 2, 4, 6]
    assert (block.elements, block.coding, block.bytes, block.changed, block.uncertain) == (15, 3, 11, 5, 1)
    assert (joint.digest, block.after) == (None, "00000000000000070000000000000008")
    (block,) = alone.blocks
    assert (alone.tensor, block.coding, block.bytes, block.offset) == (3, 2, 7, 11)
    assert alone.digest == block.after == "0000000000000009000000000000000a"


def test_update():
    data = update_bytes()
    (stated,) = re.findall(r"`UpdateFile\.Example`: (\d+) bytes", example("update.md"))
    assert len(data) == int(stated)
    parsed = update.parse(data)
    assert (parsed.run, parsed.number, parsed.base, parsed.writer) == ("run7", 42, 41, "w0")
    assert (parsed.table_offset, len(parsed.table)) == (573, 76)
    table = update.parse_table(parsed, inventory.parse(inventory_text()))
    assert table.blocks_bytes == 11


def test_manifest_and_what_it_names():
    parsed = manifest.parse(manifest_text())
    data = update_bytes()
    (part,) = parsed.parts
    assert (part.file.bytes, part.file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    table = data[part.table_offset : part.table_offset + part.table_bytes]
    assert (table, hashlib.sha256(table).hexdigest()) == (table_bytes(), part.table_sha256)
    assert parsed.inventory == inventory.parse(inventory_text()).sha256
    assert (parsed.number, parsed.base.number, parsed.digest) == (42, 41, update.parse(data).digest)


def test_the_pages_python_for_content_hashes():
    (code,) = [fence for fence in fences((PAGES / "manifest.md").read_text()) if "assert" in fence]
    text = manifest_text().decode()
    exec(code, {"xxhash": xxhash, "text": text, "c": json.loads(text)["content"]})


def test_the_pages_python_for_compact_json():
    (code,) = re.findall(r"`(json\.dumps\(x,[^`]*)`", (PAGES / "README.md").read_text().replace("\n  ", " "))
    for text in (inventory_text().decode(), manifest_text().decode()):
        assert eval(code, {"json": json, "x": json.loads(text)}) == text


def test_safetensors():
    length, header, *_ = fences(example("safetensors.md"))[0].splitlines()
    data = bytes.fromhex(length) + header.encode() + bytes(range(8))
    parsed = safetensors_file.parse(data)
    assert parsed.header_bytes == 152
    assert (parsed.bytes_of("b"), parsed.bytes_of("a")) == (bytes(range(4)), bytes(range(4, 8)))
    assert safetensors_file.serialize(safetensors_file.tensors(parsed)) == data


def test_codings():
    text = example("codings.md", "Worked example")
    coded, _, plain, keys = fences(text)
    section, stream = (bytes.fromhex(line.split(maxsplit=1)[1]) for line in coded.splitlines())
    tables = codings.open_tables(section)
    positions, steps, unsure, residues, bits, _ = codings.decode(tables, codings.STEP, 400, 2, 90, 3, stream)
    assert positions.tolist() == list(range(3, 360, 4))
    signed = steps.view("<i2").tolist()
    assert [signed[i] for i in (0, 1, 29, 59, 89)] == [1, -1, 5, -300, -32768]
    assert (unsure.tolist(), residues.tolist(), bits.tolist()) == ([1, 42, 397], [2, 255, 0], [0, 0x3F81, 0])
    positions, steps, unsure, _, bits, _ = codings.decode(
        codings.open_tables(b""), codings.STEP, 1 << 21, 4, 2, 1, bytes.fromhex(plain)
    )
    assert (positions.tolist(), steps.view("<i4").tolist()) == ([123456, 2097151], [1, -70])
    assert (unsure.tolist(), bits.tolist()) == ([5], [0x01020304])
    base = np.array([int(key) << 7 for key in keys.split()], dtype="<u2")
    profile = codings.Profile([116], [2, 2])
    ranks, counts = np.array([0, 1, 3, 7]), [3, 1]
    positions, steps, populations = codings.place(profile, counts, ranks, np.arange(4), base)
    assert (positions.tolist(), steps.tolist()) == ([3, 6, 9, 13], [0, 1, 3, 2])
    assert populations.tolist() == [4, 12]


@pytest.mark.parametrize("row", range(2))
def test_digest(row):
    rows = re.findall(
        r"^\| `(\S+)`, bytes `([0-9a-f ]+)` from (\d+).*\| `([0-9a-f]{32})` \|$",
        example("digest.md"),
        flags=re.MULTILINE,
    )
    name, data, at, expected = rows[row]
    tensor = np.frombuffer(bytes(int(at)) + bytes.fromhex(data), dtype="u1")
    assert digest.text(digest.of_tensor(name, tensor)) == expected
