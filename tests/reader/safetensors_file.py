"""docs/formats/safetensors.md: the container, checkpoints of one file or of shards."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from codings import check
from wire import Unsupported, compact, field, parse_json

MAX_HEADER_BYTES = 10**8
MAX_DIMENSIONS = 64
BITS_TOO_FEW = "F4", "F6_E2M3", "F6_E3M2"
FILE_ORDER = (
    *("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    *("I16", "U16", "F16", "BF16"),
    *("I32", "U32", "F32"),
    *("C64", "F64", "I64", "U64"),
)
WIDTHS = {
    name: width
    for names, width in ((FILE_ORDER[:8], 1), (FILE_ORDER[8:12], 2), (FILE_ORDER[12:15], 4))
    for name in names
} | dict.fromkeys(FILE_ORDER[15:], 8)


@dataclass(frozen=True)
class Entry:
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Container:
    metadata: dict[str, str]
    entries: dict[str, Entry]  # in the order of their bytes
    data: bytes
    header_bytes: int  # 8 + N

    def bytes_of(self, name: str) -> bytes:
        return self.data[self.entries[name].begin : self.entries[name].end]


@dataclass(frozen=True)
class Tensor:
    dtype: str
    bits: np.ndarray  # unsigned, of the dtype's width


def unsigned(dtype: str) -> np.dtype:
    return np.dtype(f"<u{WIDTHS[dtype]}")


def parse_entry(name: str, value) -> Entry:
    check(type(value) is dict, f"{name} is not an object")
    dtype, shape, offsets = (
        field(value, "dtype", str),
        field(value, "shape", list),
        field(value, "data_offsets", list),
    )
    if dtype in BITS_TOO_FEW or len(shape) > MAX_DIMENSIONS:
        raise Unsupported(f"{name}: {dtype} with {len(shape)} dimensions")
    check(dtype in WIDTHS, f"{name}: dtype {dtype!r}")
    check(all(type(n) is int for n in shape), f"{name}: shape {shape}")
    check(len(offsets) == 2 and all(type(n) is int for n in offsets), f"{name}: data_offsets {offsets}")
    check(math.prod(n for n in shape if n) * WIDTHS[dtype] < 1 << 64, f"{name}: shape {shape} overflows")
    begin, end = offsets
    check(begin <= end, f"{name}: data_offsets reversed")
    check(end - begin == math.prod(shape) * WIDTHS[dtype], f"{name}: {end - begin} bytes for {dtype} {shape}")
    return Entry(dtype, tuple(shape), begin, end)


def parse(data: bytes) -> Container:
    check(len(data) >= 8, f"file of {len(data)} bytes")
    header_size = int.from_bytes(data[:8], "little")
    check(1 <= header_size <= MAX_HEADER_BYTES, f"header of {header_size} bytes")
    check(8 + header_size <= len(data), f"header of {header_size} bytes in a file of {len(data)}")
    header = parse_json(data[8 : 8 + header_size], MAX_HEADER_BYTES)
    metadata = header.pop("__metadata__", None) or {}
    check(type(metadata) is dict and all(type(v) is str for v in metadata.values()), "__metadata__")
    entries = {name: parse_entry(name, value) for name, value in header.items()}
    # Stable: tensors without bytes keep the header's order among themselves.
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    at = 0
    for name, entry in entries.items():
        check(entry.begin == at, f"{name} begins at {entry.begin} instead of {at}")
        at = entry.end
    check(8 + header_size + at == len(data), f"data of {at} bytes, file has {len(data) - 8 - header_size}")
    return Container(metadata, entries, data[8 + header_size :], 8 + header_size)


def tensors(container: Container) -> dict[str, Tensor]:
    return {
        name: Tensor(
            entry.dtype,
            np.frombuffer(container.bytes_of(name), dtype=unsigned(entry.dtype)).reshape(entry.shape).copy(),
        )
        for name, entry in container.entries.items()
    }


def serialize(checkpoint: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """A checkpoint as "What the writer does" has it."""
    metadata = {"format": "pt"} if metadata is None else metadata
    order = sorted(checkpoint, key=lambda name: (-FILE_ORDER.index(checkpoint[name].dtype), name.encode()))
    members = ['"__metadata__":' + compact(metadata)] if metadata else []
    at = 0
    for name in order:
        tensor = checkpoint[name]
        end = at + tensor.bits.nbytes
        # The entry's keys in this order, which is not the sorted one.
        members.append(
            f'{compact(name)}:{{"dtype":"{tensor.dtype}","shape":{compact(list(tensor.bits.shape))},'
            f'"data_offsets":[{at},{end}]}}'
        )
        at = end
    header = ("{" + ",".join(members) + "}").encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + b"".join(checkpoint[n].bits.tobytes() for n in order)


def parse_index(text: bytes) -> dict[str, str]:
    weight_map = field(parse_json(text, MAX_HEADER_BYTES), "weight_map", dict)
    for name, shard in weight_map.items():
        check(
            type(shard) is str
            and shard not in ("", ".", "..")
            and not re.search(r"[/\\\x00-\x1f\x7f]", shard),
            f"{name} is in {shard!r}, which is not a plain file name",
        )
    return weight_map


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """A safetensors file, or a folder with model.safetensors or with shards and their index."""
    path = Path(path)
    if path.is_file():
        return tensors(parse(path.read_bytes()))
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return tensors(parse((path / "model.safetensors").read_bytes()))
    weight_map = parse_index(index.read_bytes())
    found, places = {}, {}
    for shard in sorted(set(weight_map.values())):
        part = tensors(parse((path / shard).read_bytes()))
        check(not part.keys() & found.keys(), f"{shard} repeats a tensor of another shard")
        found |= part
        places |= dict.fromkeys(part, shard)
    check(places == weight_map, "the shards' headers and weight_map differ")
    return found
