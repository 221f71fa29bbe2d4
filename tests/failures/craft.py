"""Rewrites objects of a run folder so that every hash fits: what only the meaning can give away.

Written from docs/formats alone, for runs of one BF16 tensor in one block.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xxh3 import xxh3_64, xxh3_128

ABSOLUTE = 1
STEP = 2
_ZEROS = "0" * 32


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def sealed(manifest: dict[str, Any]) -> bytes:
    """The manifest's text with its content hash set."""
    text = compact({**manifest, "content": _ZEROS})
    content = xxh3_128(text.encode())
    return text.replace(f'"content":"{_ZEROS}"', f'"content":"{content}"').encode()


def plain_absolute(positions: Iterable[int], values: Iterable[int]) -> bytes:
    """Form 0 of an absolute stream of 16-bit elements; positions in any order, as gaps modulo 2^64."""
    out, before = bytearray(b"\0"), -1
    for position in positions:
        out += varint((position - before - 1) % (1 << 64))
        before = position
    return bytes(out) + b"".join(struct.pack("<H", value) for value in values)


def split(file: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a safetensors file."""
    (size,) = struct.unpack_from("<Q", file)
    return json.loads(file[8 : 8 + size]), file[8 + size :]


def joined(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def update_file(metadata: dict[str, str], sections: dict[str, bytes]) -> bytes:
    """An update with its content hash set; sections in file order."""
    header: dict[str, Any] = {}
    begin = 0
    for name, data in sections.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [begin, begin + len(data)]}
        begin += len(data)
    hashed = b""
    for key in sorted(metadata):
        if key != "content":
            hashed += key.encode() + b"\0" + metadata[key].encode() + b"\0"
    for name in sorted(sections):
        shape = f"[{len(sections[name])}]".encode()
        hashed += (
            name.encode() + b"\0U8\0" + shape + b"\0" + struct.pack("<QQ", *header[name]["data_offsets"])
        )
    data = b"".join(sections.values())
    content = xxh3_128(hashed + data)
    return joined({"__metadata__": {**metadata, "content": content}, **header}, data)


class RunFolder:
    def __init__(self, url: str) -> None:
        self.path = Path(url)

    def manifest_path(self, number: int) -> Path:
        return self.path / f"manifests/{number:08}.json"

    def manifest(self, number: int) -> dict[str, Any]:
        return json.loads(self.manifest_path(number).read_bytes())

    def write_manifest(self, number: int, manifest: dict[str, Any]) -> None:
        self.manifest_path(number).write_bytes(sealed(manifest))

    def part_path(self, number: int) -> Path:
        return self.path / self.manifest(number)["parts"][0]["name"]

    def inventory_path(self) -> Path:
        return next(self.path.glob("inventory-*.json"))

    def anchor_path(self, number: int) -> Path:
        return self.path / f"anchors/{number:08}"

    def set_part(self, number: int, file: bytes, table: bytes | None = None) -> None:
        """Replaces the version's only part; the manifest tells its new size and hash."""
        manifest = self.manifest(number)
        part = manifest["parts"][0]
        part["bytes"] = len(file)
        part["sha256"] = hashlib.sha256(file).hexdigest()
        if table is not None:
            part["table"] = {
                "offset": len(file) - len(table),
                "bytes": len(table),
                "sha256": hashlib.sha256(table).hexdigest(),
            }
        else:
            part["table"]["offset"] = min(part["table"]["offset"], max(0, len(file) - part["table"]["bytes"]))
        (self.path / part["name"]).write_bytes(file)
        self.write_manifest(number, manifest)

    def set_block(
        self,
        number: int,
        stream: bytes,
        changed: int,
        *,
        coding: int = ABSOLUTE,
        metadata: dict[str, str] | None = None,
        tensor: int = 0,
    ) -> None:
        """Replaces the version's only block; digests stay those of the true version."""
        header, _ = split(self.part_path(number).read_bytes())
        table = b"DWBT\1" + varint(0) + struct.pack("<Q", xxh3_64(b"")) + varint(1)
        table += varint(tensor) + bytes([5, coding]) + varint(len(stream)) + varint(changed) + varint(0)
        table += struct.pack("<Q", xxh3_64(stream))
        digest = self.manifest(number)["digest"]
        table += struct.pack("<QQ", int(digest[:16], 16), int(digest[16:], 16))
        sections = {"deltawire.blocks": stream, "deltawire.entropy": b"", "deltawire.table": table}
        file = update_file({**header["__metadata__"], **(metadata or {})}, sections)
        self.set_part(number, file, table)
