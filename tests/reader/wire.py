"""Integers, text and JSON as docs/formats/README.md has them."""

from __future__ import annotations

import json
import re

from codings import Corrupt, check

MAX_DEPTH = 16
FORMAT_VERSION = 1  # of every format


class Unsupported(ValueError):
    """Another format version, or something that deltawire refuses by design."""


class Cursor:
    """Reads a binary table from front to back."""

    def __init__(self, data: bytes) -> None:
        self.data = bytes(data)
        self.at = 0

    def take(self, count: int) -> bytes:
        check(self.at + count <= len(self.data), f"{count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def unsigned(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                check(byte != 0 or shift == 7, "varint is not the shortest")
                check(value < 1 << 64, "varint above 2^64")
                return value
            check(shift < 70, "varint too long")

    def digest(self) -> str:
        return f"{self.unsigned(8):016x}{self.unsigned(8):016x}"

    def end(self) -> None:
        check(self.at == len(self.data), f"{len(self.data) - self.at} bytes left over")


class Number(str):
    """A JSON number that is not an unsigned 64-bit integer; no field of ours is one."""


def _integer(text: str):
    if text.startswith("-") or len(text) > 20 or int(text) >= 1 << 64:
        return Number(text)
    return int(text)


def _object(pairs):
    members = dict(pairs)
    check(len(members) == len(pairs), "a key occurs twice")
    return members


def _no_constant(text: str):
    raise Corrupt(f"{text} is not JSON")


def parse_json(text: bytes, max_bytes: int):
    check(len(text) <= max_bytes, f"JSON of {len(text)} bytes, at most {max_bytes}")
    check(not text.startswith(b"\xef\xbb\xbf"), "byte order mark")
    depth = 0
    for bracket in re.findall(rb"[\[{}\]]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", bytes(text), flags=re.DOTALL)):
        depth += 1 if bracket in b"[{" else -1
        check(depth <= MAX_DEPTH, f"JSON nested more than {MAX_DEPTH} deep")
    try:
        value = json.loads(
            bytes(text).decode(),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=Number,
            parse_constant=_no_constant,
        )
        json.dumps(value, ensure_ascii=False).encode()  # lone surrogates
    except Corrupt:
        raise
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"not JSON: {error}") from None
    check(isinstance(value, dict), "JSON is not an object")
    return value


def compact(value) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def field(members: dict, key: str, kind: type):
    check(key in members, f"{key} is missing")
    check(type(members[key]) is kind, f"{key} is {members[key]!r}, not {kind.__name__}")
    return members[key]


def hexadecimal(text: str, digits: int) -> str:
    check(re.fullmatch(f"[0-9a-f]{{{digits}}}", text) is not None, f"{text!r} is not {digits} digits")
    return text


def identifier(text: str) -> str:
    check(re.fullmatch("[A-Za-z0-9_-]{1,64}", text) is not None, f"{text!r} is not an id")
    return text


def run_name(text: str) -> str:
    check(1 <= len(text.encode()) <= 256, "length of the run's name")
    check(not re.search(r"[\x00-\x1f\x7f]", text), "control character in the run's name")
    return text


def decimal(text: str) -> int:
    check(re.fullmatch("0|[1-9][0-9]*", text) is not None and int(text) < 1 << 64, f"{text!r} is not decimal")
    return int(text)


def format_version(name: str, members: dict) -> None:
    """For JSON objects: the format first, then its version, then everything else."""
    check(members.get("format") == name, f"format {members.get('format')!r} instead of {name}")
    version = field(members, "format_version", int)
    if version != FORMAT_VERSION:
        raise Unsupported(f"{name} has format version {version}, this reader knows {FORMAT_VERSION}")
