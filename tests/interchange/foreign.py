"""Slime's and TRL's formats, written from their description alone (docs/interchange.md), in Python."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

_ZSTD = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
for _name in ("ZSTD_compressBound", "ZSTD_compress", "ZSTD_decompress", "ZSTD_getFrameContentSize"):
    getattr(_ZSTD, _name).restype = ctypes.c_uint64


def compress(content: bytes, level: int = 1) -> bytes:
    room = ctypes.create_string_buffer(_ZSTD.ZSTD_compressBound(ctypes.c_size_t(len(content))))
    size = _ZSTD.ZSTD_compress(
        room, ctypes.c_size_t(len(room)), content, ctypes.c_size_t(len(content)), ctypes.c_int(level)
    )
    return room.raw[:size]


def decompress(frame: bytes) -> bytes:
    size = _ZSTD.ZSTD_getFrameContentSize(frame, ctypes.c_size_t(len(frame)))
    room = ctypes.create_string_buffer(max(1, size))
    done = _ZSTD.ZSTD_decompress(room, ctypes.c_size_t(size), frame, ctypes.c_size_t(len(frame)))
    assert done == size
    return room.raw[:size]


def container(tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str]) -> bytes:
    """A safetensors file; tensors in the given order."""
    header: dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, bits) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(bits)]}
        data += bits
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_container(file: bytes) -> tuple[dict[str, tuple[str, list[int], bytes]], dict[str, str]]:
    (size,) = struct.unpack_from("<Q", file)
    header = json.loads(file[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    data = file[8 + size :]
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }, metadata


CHECKSUMS = {
    "xxh3-128": lambda bits: xxhash.xxh3_128(bits).hexdigest(),
    "adler32": lambda bits: f"{zlib.adler32(bits):08x}",
}


def difference(encoding: str, old: bytes, new: bytes) -> bytes:
    a, b = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    if encoding == "xor":
        return (a ^ b).tobytes()
    where = np.flatnonzero(a != b)
    return struct.pack("<I", where.size) + where.astype("<u4").tobytes() + b[where].tobytes()


def apply_difference(encoding: str, old: bytes, content: bytes) -> bytes:
    bits = np.frombuffer(old, np.uint8).copy()
    if encoding == "xor":
        return (bits ^ np.frombuffer(content, np.uint8)).tobytes()
    (count,) = struct.unpack_from("<I", content)
    bits[np.frombuffer(content, "<u4", count, 4)] = np.frombuffer(content, np.uint8, count, 4 + 4 * count)
    return bits.tobytes()


def write_slime(
    folder: Path,
    old: dict[str, bytes],
    new: dict[str, bytes],
    *,
    version: int = 7,
    base_version: int = 6,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    files: int = 1,
) -> Path:
    """A version's folder, its tensors spread over `files` data files."""
    folder.mkdir(parents=True)
    names = [name for name in old if old[name] != new[name]]
    weight_map = {}
    for i in range(files):
        file = f"model-{i:05}-of-{files:05}.safetensors"
        mine = names[i::files]
        tensors, metadata = {}, {}
        for name in mine:
            frame = compress(difference(encoding, old[name], new[name]))
            tensors[name] = ("U8", [len(frame)], frame)
            metadata[name] = CHECKSUMS[checksum](new[name])
        (folder / file).write_bytes(container(tensors, metadata))
        weight_map |= dict.fromkeys(mine, file)
    index = {
        "metadata": {
            "version": f"{version:06}",
            "base_version": f"{base_version:06}",
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": checksum,
        },
        "weight_map": weight_map,
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def apply_slime(folder: Path, old: dict[str, bytes]) -> dict[str, bytes]:
    """The tensors after a delta, every checksum compared."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    new, seen = dict(old), set()
    for file in sorted(set(index["weight_map"].values())):
        tensors, metadata = read_container((folder / file).read_bytes())
        for name, (dtype, shape, frame) in tensors.items():
            assert (dtype, shape) == ("U8", [len(frame)]) and index["weight_map"][name] == file
            content = decompress(frame)
            new[name] = apply_difference(index["metadata"]["delta_encoding"], old[name], content)
            digest = CHECKSUMS.get(index["metadata"]["checksum_format"])
            assert digest is None or metadata[name] == digest(new[name])
            seen.add(name)
    assert seen == set(index["weight_map"])
    return new


def write_trl(
    path: Path,
    changes: dict[str, tuple[str, np.ndarray, np.ndarray]],
    *,
    encoding: str = "gap_delta",
    metadata: dict[str, str] | None = None,
) -> Path:
    """changes: name -> (dtype of the values, positions, values as unsigned integers)."""
    entries: list[tuple[str, str, bytes, int]] = []
    for name, (dtype, positions, values) in changes.items():
        if encoding == "raw":
            index = ("I32", positions.astype("<i4").tobytes())
        else:
            gaps = np.diff(positions.astype(np.int64), prepend=-1) - 1
            wide = gaps.size > 0 and int(gaps.max()) > 65535
            index = ("U32", gaps.astype("<u4").tobytes()) if wide else ("U16", gaps.astype("<u2").tobytes())
        entries.append((f"{name}.idx", *index, positions.size))
        entries.append((f"{name}.val", dtype, values.tobytes(), positions.size))
    rank = {"U16": 0, "BF16": 1, "I32": 2, "U32": 3}
    entries.sort(key=lambda entry: (-rank.get(entry[1], 4), entry[0]))
    known = {
        "format": "sparse_weight_patch",
        "version": "1",
        "sparse": "True",
        "model_version": "7",
        "num_changed_params": str(len(changes)),
        "encoding": encoding,
    }
    tensors = {name: (dtype, [count], bits) for name, dtype, bits, count in entries}
    path.write_bytes(container(tensors, known | (metadata or {})))
    return path
