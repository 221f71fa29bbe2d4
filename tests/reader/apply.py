"""Applies updates to numpy arrays and proves every digest. Nothing of the caller's is written."""

from __future__ import annotations

from collections.abc import Sequence

import codings
import digest
import numpy as np
import xxhash
from block_table import Block
from codings import check
from inventory import Inventory, Item
from safetensors_file import unsigned
from update import Update, parse_table

State = dict[str, np.ndarray]
CHECK_BYTES = 4


def apply_block(tables, block: Block, data: bytes, item: Item, box: np.ndarray) -> np.ndarray:
    """The block's new bits, flat, tensor after tensor; `box` has the old ones, of `item`'s width."""
    if block.coding == codings.DENSE:
        return np.frombuffer(data, dtype=unsigned(item.dtype)).copy()
    stream = data
    if block.coding != codings.ABSOLUTE:
        check(len(data) >= CHECK_BYTES, f"{item.name}: a block without its check")
        stream = data[:-CHECK_BYTES]
    positions, values, unsure, residues, bits, populations = codings.decode(
        tables, block.coding, block.elements, item.width, block.changed, block.uncertain, stream, box
    )
    changed, uncertain = codings.resolve(block.coding, values, residues, bits, box[positions], box[unsure])
    if block.coding != codings.ABSOLUTE:
        hashed = changed.tobytes() + uncertain.tobytes() + populations.tobytes()
        low = xxhash.xxh3_64_intdigest(hashed) & 0xFFFFFFFF
        found = int.from_bytes(data[-CHECK_BYTES:], "little")
        check(low == found, f"{item.name}: the values' check is {low:08x}, the block says {found:08x}")
    new = box.copy()
    new[positions] = changed
    new[unsure] = uncertain
    return new


def check_state(state: State, inventory: Inventory) -> None:
    check(list(state) == [item.name for item in inventory.tensors], "the state has other tensors")
    for item in inventory.tensors:
        bits = state[item.name]
        check(
            bits.shape == item.shape and bits.dtype == unsigned(item.dtype),
            f"{item.name}: {bits.dtype} {bits.shape}",
        )


def zeros(inventory: Inventory) -> State:
    return {item.name: np.zeros(item.shape, dtype=unsigned(item.dtype)) for item in inventory.tensors}


def apply(parts: Sequence[Update], inventory: Inventory, base: State | None) -> State:
    """The new state. `parts` together make a version; `base` may be None where they need none."""
    check(len(parts) > 0, "no parts")
    first = parts[0]
    for part in parts:
        same = "run", "number", "base", "inventory_sha256", "base_digest", "more_bases", "digest"
        check(
            all(getattr(part, name) == getattr(first, name) for name in same), "parts of different versions"
        )
    if first.base_digest is None:
        base = zeros(inventory)
    else:
        check(base is not None, "the update needs a base")
        check_state(base, inventory)
        found = digest.text(digest.of_state(base))
        wanted = (first.base_digest, *first.more_bases)
        check(found in wanted, f"base has digest {found}, the update wants {' or '.join(wanted)}")
    state = {name: bits.copy() for name, bits in base.items()}
    written = {item.name: np.zeros(item.shape, dtype=bool) for item in inventory.tensors}
    promised: dict[str, str] = {}
    for part in parts:
        tables = codings.open_tables(part.entropy)
        for group in parse_table(part, inventory).groups:
            item = inventory.tensors[group.tensor]
            if group.digest is not None:
                promised[item.name] = group.digest
            for block in group.blocks:
                check(first.base_digest is not None or block.coding == codings.DENSE, f"{item.name}: no base")
                data = part.blocks[block.offset : block.offset + block.bytes]
                items = [inventory.tensors[member.tensor] for member in block.members]
                box = np.concatenate(
                    [
                        base[own.name][member.slices].ravel()
                        for own, member in zip(items, block.members, strict=True)
                    ]
                )
                new = apply_block(tables, block, data, item, box)
                after = digest.ZERO
                at = 0
                for own, member in zip(items, block.members, strict=True):
                    bits = new[at : at + member.elements]
                    at += member.elements
                    after = digest.add(after, digest.of_elements(own.name, member.positions(own.shape), bits))
                    state[own.name][member.slices] = bits.reshape(member.size)
                    check(not written[own.name][member.slices].any(), f"{own.name}: parts overlap")
                    written[own.name][member.slices] = True
                found = digest.text(after)
                check(found == block.after, f"{item.name}: block digests to {found} instead of {block.after}")
    for item in inventory.tensors:
        check(first.base_digest is not None or written[item.name].all(), f"{item.name}: not all is sent")
    for name, expected in promised.items():
        found = digest.text(digest.of_tensor(name, state[name]))
        check(found == expected, f"{name} digests to {found} instead of {expected}")
    found = digest.text(digest.of_state(state))
    check(found == first.digest, f"the version digests to {found} instead of {first.digest}")
    return state
