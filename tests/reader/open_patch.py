"""docs/formats/open.md: an update as plain index and value tensors, proved like every other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import digest
import inventory
import numpy as np
import safetensors_file
import update
import xxhash
from apply import State, check_state, zeros
from codings import check
from safetensors_file import unsigned
from wire import FORMAT_VERSION, Unsupported, compact, decimal, hexadecimal, identifier, run_name

INVENTORY, DIGESTS = "deltawire.inventory", "deltawire.digests"
FIELDS = "run", "number", "base", "writer", "inventory", "base_digest", "digest", "content"
GAP_DTYPES = "U16", "U32", "U64"
DIGEST_BYTES = 16


@dataclass(frozen=True)
class Change:
    """What is listed of a tensor; positions are flat and ascend."""

    positions: np.ndarray  # i64
    dtype: str
    values: np.ndarray  # unsigned, of the dtype's width


@dataclass(frozen=True)
class OpenPatch:
    run: str
    number: int
    base: int | None
    writer: str
    inventory_sha256: str
    base_digest: str | None
    digest: str
    changes: dict[str, Change]
    block_digests: tuple[str, ...]
    inventory: inventory.Inventory | None  # of a standalone patch


def content_hash(container: safetensors_file.Container) -> str:
    h = xxhash.xxh3_128()
    for key in sorted(container.metadata.keys() - {"deltawire.content"}, key=str.encode):
        h.update(f"{key}\0{container.metadata[key]}\0".encode())
    for name in sorted(container.entries, key=str.encode):
        entry = container.entries[name]
        h.update(f"{name}\0{entry.dtype}\0{compact(list(entry.shape))}\0".encode())
        h.update(np.array([entry.begin, entry.end], "<u8").tobytes())
    h.update(container.data)
    return h.hexdigest()


def positions_of(container: safetensors_file.Container, name: str, encoding: str) -> np.ndarray:
    """The positions that an `.idx` tensor says."""
    entry, data = container.entries[name], container.bytes_of(name)
    check(len(entry.shape) == 1, f"{name} has shape {entry.shape}")
    if encoding == "raw":
        check(entry.dtype == "I32", f"{name}: {entry.dtype} positions")
        positions = np.frombuffer(data, "<i4").astype(np.int64)
        check(bool((positions >= 0).all()), f"{name}: a negative position")
        check(bool((np.diff(positions) > 0).all()), f"{name}: positions do not ascend")
        return positions
    check(entry.dtype in GAP_DTYPES, f"{name}: {entry.dtype} gaps")
    gaps = np.frombuffer(data, unsigned(entry.dtype))
    # In floating point, which does not wrap: after it the sum of integers does not either.
    last = float(gaps.sum(dtype=np.float64)) + gaps.size - 1
    check(last < inventory.MAX_TENSOR_ELEMENTS, f"{name}: a position of 2^40 or more")
    return np.cumsum(gaps.astype(np.int64) + 1) - 1


def parse(data: bytes) -> OpenPatch:
    """What a file says about itself; `apply` compares it with the inventory."""
    container = safetensors_file.parse(data)
    metadata = container.metadata
    kind = metadata.get("deltawire.format")
    check(kind == "deltawire.open", f"deltawire.format {kind!r}: not an open update of deltawire's")
    if (version := metadata.get("deltawire.format_version")) != str(FORMAT_VERSION):
        raise Unsupported(f"open update has format version {version}, this reader knows {FORMAT_VERSION}")
    check(metadata.get("format") == "sparse_weight_patch", f"format {metadata.get('format')!r}")
    check(metadata.get("sparse") == "True", f"sparse {metadata.get('sparse')!r}")
    encoding = metadata.get("encoding")
    check(encoding in ("gap_delta", "raw"), f"encoding {encoding!r}")
    changes = {}
    names = [name for name in container.entries if name not in (INVENTORY, DIGESTS)]
    for name in names:
        check(name.endswith((".idx", ".val")), f"{name} is neither index nor values")
        pair = name[:-4] + ".idx", name[:-4] + ".val"
        check(all(part in container.entries for part in pair), f"{name} stands alone")
        index, entry = (container.entries[part] for part in pair)
        check(index.shape == entry.shape, f"{name[:-4]}: {index.shape} positions, {entry.shape} values")
        if name.endswith(".val"):
            values = np.frombuffer(container.bytes_of(name), unsigned(entry.dtype))
            changes[name[:-4]] = Change(positions_of(container, pair[0], encoding), entry.dtype, values)
    last = [INVENTORY, DIGESTS] if INVENTORY in container.entries else [DIGESTS]
    check(list(container.entries)[-len(last) :] == last, f"the last tensors are not {last}")
    for name in last:
        entry = container.entries[name]
        check(entry.dtype == "U8" and len(entry.shape) == 1, f"{name} is {entry.dtype} {entry.shape}")
    fields = {}
    for key in FIELDS:
        check(f"deltawire.{key}" in metadata, f"deltawire.{key} is missing")
        fields[key] = metadata[f"deltawire.{key}"]
    found = content_hash(container)
    check(found == fields["content"], f"content hash is {found}, the file says {fields['content']}")
    number = decimal(fields["number"])
    base = None if fields["base"] == "none" else decimal(fields["base"])
    check(base is None or base < number, f"base {base} of version {number}")
    own = None
    if INVENTORY in container.entries:
        own = inventory.parse(update.inflate(container.bytes_of(INVENTORY)))
        check(own.sha256 == fields["inventory"], "the inventory inside is not the one that is named")
    words = container.bytes_of(DIGESTS)
    check(len(words) % DIGEST_BYTES == 0, f"{DIGESTS} of {len(words)} bytes")
    lanes = np.frombuffer(words, "<u8").reshape(-1, 2).tolist()
    base_digest = fields["base_digest"]
    return OpenPatch(
        run=run_name(fields["run"]),
        number=number,
        base=base,
        writer=identifier(fields["writer"]),
        inventory_sha256=hexadecimal(fields["inventory"], 64),
        base_digest=None if base_digest == "none" else hexadecimal(base_digest, 32),
        digest=hexadecimal(fields["digest"], 32),
        changes=changes,
        block_digests=tuple(digest.text((first, second)) for first, second in lanes),
        inventory=own,
    )


def runs_of(item: inventory.Item) -> list[tuple[int, int]]:
    """(first, end) of each block of the grid, in flat positions."""
    out = []
    for start, size in inventory.grid_boxes(item):
        strides = [math.prod(item.shape[d + 1 :]) for d in range(len(size))]
        first = sum(a * stride for a, stride in zip(start, strides, strict=True))
        last = sum((a + n - 1) * stride for a, n, stride in zip(start, size, strides, strict=True))
        if last - first + 1 != math.prod(size):
            raise Unsupported(f"{item.name}: a block of grid {item.grid} is not a run of elements")
        out.append((first, last + 1))
    return out


def apply(patch: OpenPatch, known: inventory.Inventory, base: State | None) -> State:
    """The new state, after every digest has been proved. `base` may be None where the patch names none."""
    check(known.sha256 == patch.inventory_sha256, "the patch belongs to another inventory")
    if patch.base_digest is None:
        base = zeros(known)
    else:
        check(base is not None, "the patch needs a base")
        check_state(base, known)
        found = digest.text(digest.of_state(base))
        check(found == patch.base_digest, f"base has digest {found}, the patch wants {patch.base_digest}")
    items = {item.name: item for item in known.tensors}
    check(patch.changes.keys() <= items.keys(), "a tensor that the inventory has not")
    state = {name: bits.copy() for name, bits in base.items()}
    promised = list(patch.block_digests)
    for item in known.tensors:
        change = patch.changes.get(item.name)
        check(
            patch.base_digest is not None
            or item.elements == (0 if change is None else change.positions.size),
            f"{item.name}: there is no base, and not all is sent",
        )
        if change is None:
            continue
        check(change.dtype == item.dtype, f"{item.name} is {item.dtype}, its values are {change.dtype}")
        last = int(change.positions[-1]) if change.positions.size else -1
        check(last < item.elements, f"{item.name}: position {last} of {item.elements}")
        flat = state[item.name].reshape(-1)
        flat[change.positions] = change.values
        for first, end in runs_of(item):
            begin = np.searchsorted(change.positions, first)
            if begin < change.positions.size and change.positions[begin] < end:
                check(len(promised) > 0, f"{item.name}: a block without digest")
                places = np.arange(first, end, dtype=np.uint64)
                found = digest.text(digest.of_elements(item.name, places, flat[first:end]))
                wanted = promised.pop(0)
                check(found == wanted, f"{item.name}: block at {first} digests to {found}, not {wanted}")
    check(not promised, f"{len(promised)} digests of no block")
    found = digest.text(digest.of_state(state))
    check(found == patch.digest, f"the version digests to {found} instead of {patch.digest}")
    return state
