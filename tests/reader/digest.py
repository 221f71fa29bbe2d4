"""docs/formats/digest.md: sums over 8-byte words of canonical tensors, each times a key of its place."""

from __future__ import annotations

import numpy as np
import xxhash

U64 = np.uint64
G = 0x9E3779B97F4A7C15
ROW_WORDS = 512
MASK = (1 << 64) - 1
ZERO = (0, 0)


def mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    return z ^ (z >> U64(31))


def keys(name: str, words: np.ndarray, lane: int) -> np.ndarray:
    """K (lane 0) or K' (lane 1) at these word numbers."""
    seed = U64(xxhash.xxh3_64_intdigest(name.encode()))
    i = words % U64(ROW_WORDS)
    b = words // U64(ROW_WORDS)
    odd = U64(1 + lane)
    column = mix((U64(2) * i + odd) * U64(G)) | U64(1)
    row = mix(seed + (U64(2) * b + odd) * U64(G)) | U64(1)
    return column * row


def total(lane: np.ndarray) -> int:
    return int(lane.sum(dtype=U64)) if lane.size else 0


def of_tensor(name: str, bits: np.ndarray) -> tuple[int, int]:
    data = np.ascontiguousarray(bits).tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 8), dtype="<u8").astype(U64)
    places = np.arange(words.size, dtype=U64)
    with np.errstate(over="ignore"):
        return total(keys(name, places, 0) * words), total(keys(name, places, 1) * words.byteswap())


def of_elements(name: str, positions: np.ndarray, bits: np.ndarray) -> tuple[int, int]:
    """What elements at these flat positions of the tensor add."""
    width = bits.dtype.itemsize
    offsets = positions.astype(U64) * U64(width)
    words = offsets // U64(8)
    k = offsets % U64(8)
    with np.errstate(over="ignore"):
        forward = bits.astype(U64) << (U64(8) * k)
        backward = bits.byteswap().astype(U64) << (U64(8) * (U64(8 - width) - k))
        return total(keys(name, words, 0) * forward), total(keys(name, words, 1) * backward)


def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return (a[0] + b[0]) & MASK, (a[1] + b[1]) & MASK


def text(digest: tuple[int, int]) -> str:
    return f"{digest[0]:016x}{digest[1]:016x}"


def parse(digits: str) -> tuple[int, int]:
    return int(digits[:16], 16), int(digits[16:], 16)


def of_state(tensors: dict[str, np.ndarray]) -> tuple[int, int]:
    """The digest of a version: names are canonical, ties counted once."""
    result = ZERO
    for name, bits in tensors.items():
        result = add(result, of_tensor(name, bits))
    return result
