"""docs/formats/inventory.md: what a run serves, and the digest table."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from codings import MAX_ELEMENTS, check
from safetensors_file import WIDTHS, Tensor
from wire import FORMAT_VERSION, Cursor, Unsupported, compact, field, format_version, parse_json

MAX_TEXT_BYTES = 64 << 20
MAX_DIMENSIONS = 8
MAX_TENSOR_ELEMENTS = 1 << 40
MAX_PIECES = 65536
FOREIGN_NAMES = "__metadata__", "__awex_delta_header__"
FOREIGN_ENDINGS = ".idx", ".val", "@delta_idx", "@delta_val"


@dataclass(frozen=True)
class Item:
    """A tensor of the inventory."""

    name: str
    aliases: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    grid: tuple[int, int]
    cast: str

    @property
    def width(self) -> int:
        return WIDTHS[self.dtype]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Inventory:
    sha256: str
    cast_rule: str
    tensors: tuple[Item, ...]


def check_name(name) -> str:
    check(type(name) is str and 1 <= len(name.encode()) <= 1024 and "\0" not in name, f"name {name!r}")
    check(
        name not in FOREIGN_NAMES
        and not name.startswith("deltawire.")
        and not name.endswith(FOREIGN_ENDINGS),
        f"name {name!r} means something else in another format",
    )
    return name


def parse_item(members) -> Item:
    check(type(members) is dict, "a tensor is not an object")
    name = check_name(field(members, "name", str))
    aliases = [check_name(a) for a in field(members, "aliases", list)] if "aliases" in members else []
    check(aliases == sorted(aliases, key=str.encode), f"{name}: aliases are not sorted")
    dtype, shape = field(members, "dtype", str), field(members, "shape", list)
    check(dtype in WIDTHS, f"{name}: dtype {dtype!r}")
    check(len(shape) <= MAX_DIMENSIONS and all(type(n) is int for n in shape), f"{name}: shape {shape}")
    check(math.prod(n for n in shape if n) <= MAX_TENSOR_ELEMENTS, f"{name}: shape {shape} is too large")
    grid = field(members, "grid", list) if "grid" in members else [0, 1]
    check(len(grid) == 2 and all(type(n) is int for n in grid), f"{name}: grid {grid}")
    axis, pieces = grid
    check(pieces == 1 or axis < len(shape), f"{name}: grid {grid} of {shape}")
    check(
        1 <= pieces <= MAX_PIECES and (pieces == 1 or pieces <= shape[axis]),
        f"{name}: grid {grid} of {shape}",
    )
    cast = field(members, "cast", str) if "cast" in members else "none"
    check(1 <= len(cast.encode()) <= 64, f"{name}: cast {cast!r}")
    return Item(name, tuple(aliases), dtype, tuple(shape), (axis, pieces), cast)


def serialize(cast_rule: str, tensors: tuple[Item, ...]) -> bytes:
    out = []
    for item in tensors:
        members = {"name": item.name, "dtype": item.dtype, "shape": list(item.shape)}
        if item.aliases:
            members["aliases"] = list(item.aliases)
        if item.grid != (0, 1):
            members["grid"] = list(item.grid)
        if item.cast != "none":
            members["cast"] = item.cast
        out.append(members)
    return compact(
        {
            "format": "deltawire.inventory",
            "format_version": FORMAT_VERSION,
            "cast_rule": cast_rule,
            "tensors": out,
        }
    ).encode()


def parse(text: bytes) -> Inventory:
    members = parse_json(text, MAX_TEXT_BYTES)
    format_version("deltawire.inventory", members)
    cast_rule = field(members, "cast_rule", str)
    check(len(cast_rule.encode()) <= 4096, "cast_rule is too long")
    tensors = tuple(parse_item(item) for item in field(members, "tensors", list))
    names = [item.name for item in tensors]
    check(names == sorted(names, key=str.encode), "tensors are not sorted by name")
    everything = names + [alias for item in tensors for alias in item.aliases]
    check(len(set(everything)) == len(everything), "a name occurs twice")
    check(serialize(cast_rule, tensors) == bytes(text), "the text is not the one that this inventory has")
    return Inventory(hashlib.sha256(text).hexdigest(), cast_rule, tensors)


def grid_boxes(item: Item) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(start, size) of each block that a writer cuts."""
    axis, pieces = item.grid
    if item.elements == 0:
        return []
    whole = (0,) * len(item.shape), item.shape
    if pieces == 1:
        return cut(*whole, 0)
    step = -(-item.shape[axis] // pieces)
    out = []
    for at in range(0, item.shape[axis], step):
        start, size = list(whole[0]), list(whole[1])
        start[axis], size[axis] = at, min(step, item.shape[axis] - at)
        out += cut(tuple(start), tuple(size), 0)
    return out


def cut(start, size, axis):
    if math.prod(size) <= MAX_ELEMENTS:
        return [(start, size)]
    inner = math.prod(size[axis + 1 :])
    rows = max(1, MAX_ELEMENTS // inner)
    out = []
    for at in range(0, size[axis], rows):
        piece = *size[:axis], min(rows, size[axis] - at), *size[axis + 1 :]
        out += cut((*start[:axis], start[axis] + at, *start[axis + 1 :]), piece, axis + 1)
    return out


def canonical(inventory: Inventory, checkpoint: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """The checkpoint's bits by canonical name; it must have exactly what the inventory names."""
    left = dict(checkpoint)
    state = {}
    for item in inventory.tensors:
        check(item.name in left, f"{item.name} is missing")
        tensor = left.pop(item.name)
        check(
            (tensor.dtype, tensor.bits.shape) == (item.dtype, item.shape),
            f"{item.name} is {tensor.dtype} {tensor.bits.shape} instead of {item.dtype} {item.shape}",
        )
        state[item.name] = tensor.bits
        for alias in item.aliases:
            if alias in left:
                check(np.array_equal(left.pop(alias).bits, tensor.bits), f"{alias} differs from {item.name}")
    check(not left, f"not in the inventory: {sorted(left)}")
    return state


def parse_digests(data: bytes, count: int) -> list[str]:
    """A digest table, for an inventory of `count` tensors."""
    cursor = Cursor(data)
    check(cursor.take(4) == b"DWDT", "not a digest table")
    version = cursor.unsigned(4)
    if version != FORMAT_VERSION:
        raise Unsupported(f"digest table has version {version}, this reader knows {FORMAT_VERSION}")
    found = cursor.unsigned(8)
    check(found == count, f"{found} digests for {count} tensors")
    check(len(data) == 16 + 16 * count, f"digest table of {len(data)} bytes")
    digests = [cursor.digest() for _ in range(count)]
    cursor.end()
    return digests
