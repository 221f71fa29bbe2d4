"""docs/formats/manifest.md: what makes a version or an anchor."""

from __future__ import annotations

import re
from dataclasses import dataclass

import xxhash
from codings import check
from wire import field, format_version, hexadecimal, identifier, parse_json, run_name

MAX_BYTES = 16 << 20
KNOWN_CODINGS = "class", "step", "absolute", "dense"


@dataclass(frozen=True)
class File:
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Part:
    file: File
    coding: str
    table_offset: int
    table_bytes: int
    table_sha256: str


@dataclass(frozen=True)
class Base:
    kind: str  # version, checkpoint, none
    number: int | None
    manifest: str | None
    digest: str | None


@dataclass(frozen=True)
class Manifest:
    run: str
    number: int
    writer: str
    attempt: str
    created_unix_ns: int
    inventory: str
    digest: str
    steps: int
    base: Base
    alias_of: int | None
    parts: tuple[Part, ...]
    tensor_digests: File | None
    counts: dict[str, int]
    detectors: tuple[tuple[str, str, int, int], ...]


@dataclass(frozen=True)
class Anchor:
    run: str
    number: int
    inventory: str
    digest: str
    manifest: str
    files: tuple[File, ...]
    tensor_digests: File | None


def check_content(text: bytes, members: dict) -> None:
    content = hexadecimal(field(members, "content", str), 32)
    spelled = f'"content":"{content}"'.encode()
    check(text.count(spelled) == 1, "content does not stand in the text exactly once")
    zeroed = text.replace(spelled, b'"content":"' + b"0" * 32 + b'"')
    check(xxhash.xxh3_128_hexdigest(zeroed) == content, "content hash")


def object_name(name: str) -> str:
    part = r"[A-Za-z0-9_\-+=@][A-Za-z0-9._\-+=@]{0,199}"
    check(len(name) <= 900 and re.fullmatch(f"{part}(/{part})*", name) is not None, f"object name {name!r}")
    return name


def parse_file(members, plain: bool = False) -> File:
    check(type(members) is dict, "a file is not an object")
    name = object_name(field(members, "name", str))
    check(not plain or "/" not in name, f"{name!r} is not a plain file name")
    return File(name, field(members, "bytes", int), hexadecimal(field(members, "sha256", str), 64))


def parse_part(members) -> Part:
    file = parse_file(members)
    table = field(members, "table", dict)
    offset, size = field(table, "offset", int), field(table, "bytes", int)
    check(offset + size <= file.bytes, f"{file.name}: the table leaves its object")
    return Part(
        file, field(members, "coding", str), offset, size, hexadecimal(field(table, "sha256", str), 64)
    )


def parse_base(members: dict, number: int) -> Base:
    kind = field(members, "kind", str)
    check(kind in ("version", "checkpoint", "none"), f"base of kind {kind!r}")
    base = manifest = digest = None
    if kind != "none":
        digest = hexadecimal(field(members, "digest", str), 32)
    if kind == "version":
        base = field(members, "number", int)
        check(base < number, f"base {base} of version {number}")
        manifest = hexadecimal(field(members, "manifest", str), 64)
    return Base(kind, base, manifest, digest)


def parse_detector(members) -> tuple[str, str, int, int]:
    check(type(members) is dict, "a detector is not an object")
    return (
        field(members, "detector", str),
        field(members, "reason", str),
        field(members, "tensors", int),
        field(members, "elements", int),
    )


def parse(text: bytes) -> Manifest:
    members = parse_json(text, MAX_BYTES)
    format_version("deltawire.manifest", members)
    check_content(text, members)
    number = field(members, "number", int)
    alias_of = field(members, "alias_of", int) if "alias_of" in members else None
    parts = tuple(parse_part(part) for part in field(members, "parts", list))
    check(alias_of is None or (alias_of < number and not parts), f"alias {alias_of} of version {number}")
    tensor_digests = parse_file(members["tensor_digests"]) if "tensor_digests" in members else None
    names = [part.file.name for part in parts] + ([tensor_digests.name] if tensor_digests else [])
    check(len(set(names)) == len(names), "an object is listed twice")
    counted = field(members, "counts", dict)
    counts = {key: field(counted, key, int) for key in ("changed", "sent", "uncertain", "dense", "total")}
    check(all(n <= counts["total"] for n in counts.values()), f"counts {counts}")
    return Manifest(
        run=run_name(field(members, "run", str)),
        number=number,
        writer=identifier(field(members, "writer", str)),
        attempt=identifier(field(members, "attempt", str)),
        created_unix_ns=field(members, "created_unix_ns", int),
        inventory=hexadecimal(field(members, "inventory", str), 64),
        digest=hexadecimal(field(members, "digest", str), 32),
        steps=field(members, "steps", int),
        base=parse_base(field(members, "base", dict), number),
        alias_of=alias_of,
        parts=parts,
        tensor_digests=tensor_digests,
        counts=counts,
        detectors=tuple(parse_detector(d) for d in field(members, "detectors", list)),
    )


def parse_anchor(text: bytes) -> Anchor:
    members = parse_json(text, MAX_BYTES)
    format_version("deltawire.anchor", members)
    check_content(text, members)
    files = tuple(parse_file(file, plain=True) for file in field(members, "files", list))
    check(len({file.name for file in files}) == len(files), "a file is listed twice")
    return Anchor(
        run=run_name(field(members, "run", str)),
        number=field(members, "number", int),
        inventory=hexadecimal(field(members, "inventory", str), 64),
        digest=hexadecimal(field(members, "digest", str), 32),
        manifest=hexadecimal(field(members, "manifest", str), 64),
        files=files,
        tensor_digests=parse_file(members["tensor_digests"]) if "tensor_digests" in members else None,
    )
