"""XXH3 of libxxhash, which building deltawire needs anyway."""

from __future__ import annotations

import ctypes


class _Hash128(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


_LIBRARY = ctypes.CDLL("libxxhash.so.0")
_LIBRARY.XXH3_64bits.argtypes = _LIBRARY.XXH3_128bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
_LIBRARY.XXH3_64bits.restype = ctypes.c_uint64
_LIBRARY.XXH3_128bits.restype = _Hash128


def xxh3_64(data: bytes) -> int:
    return int(_LIBRARY.XXH3_64bits(data, len(data)))


def xxh3_128(data: bytes) -> str:
    """As ``xxhsum -H2`` prints it."""
    value = _LIBRARY.XXH3_128bits(data, len(data))
    return f"{value.high:016x}{value.low:016x}"
