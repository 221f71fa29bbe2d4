"""docs/formats/block-table.md: which bytes say what about which box."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from codings import ABSOLUTE, CLASS, DENSE, MAX_ELEMENTS, STEP, check
from inventory import Inventory, Item
from wire import FORMAT_VERSION, Cursor, Unsupported

WHOLE, TENSOR_DIGEST, DIGEST_IS_BLOCKS, JOINT = 1, 2, 4, 8
MAX_CUTS = 10


@dataclass(frozen=True)
class Member:
    """A tensor's part of a block."""

    tensor: int
    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.size)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, a + n) for a, n in zip(self.start, self.size, strict=True))

    def positions(self, shape: tuple[int, ...]) -> np.ndarray:
        """Flat positions, in the tensor, of the box's elements."""
        return np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)[self.slices].ravel()


@dataclass(frozen=True)
class Block:
    members: tuple[Member, ...]  # several: a joint block
    coding: int
    offset: int  # in deltawire.blocks
    bytes: int
    changed: int
    uncertain: int
    hash: int
    after: str

    @property
    def elements(self) -> int:
        return sum(member.elements for member in self.members)


@dataclass(frozen=True)
class Group:
    tensor: int
    digest: str | None
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Table:
    entropy_bytes: int
    entropy_hash: int
    groups: tuple[Group, ...]

    @property
    def blocks_bytes(self) -> int:
        return sum(block.bytes for group in self.groups for block in group.blocks)


def parse_box(cursor: Cursor, item: Item):
    dimensions = len(item.shape)
    cuts = cursor.varint()
    check(cuts < 1 << dimensions, f"{item.name}: cut {cuts:b} of {dimensions} dimensions")
    start, size = [0] * dimensions, list(item.shape)
    for d in range(dimensions):
        if cuts >> d & 1:
            start[d], size[d] = cursor.varint(), cursor.varint()
            check(start[d] + size[d] <= item.shape[d], f"{item.name}: box leaves the tensor in dimension {d}")
            check(size[d] != item.shape[d], f"{item.name}: dimension {d} is whole and spelled as cut")
    return tuple(start), tuple(size)


def parse_block(cursor: Cursor, members: tuple[Member, ...], item: Item, offset: int) -> Block:
    coding = cursor.unsigned(1)
    if coding not in (DENSE, ABSOLUTE, STEP, CLASS):
        raise Unsupported(f"{item.name}: coding {coding}")
    elements = sum(member.elements for member in members)
    check(1 <= elements <= MAX_ELEMENTS, f"{item.name}: block of {elements} elements")
    stream_bytes, changed, uncertain = elements * item.width, 0, 0
    if coding != DENSE:
        stream_bytes, changed, uncertain = cursor.varint(), cursor.varint(), cursor.varint()
    check(changed + uncertain <= elements, f"{item.name}: more changes than elements")
    return Block(
        members, coding, offset, stream_bytes, changed, uncertain, cursor.unsigned(8), cursor.digest()
    )


def parse_joined(cursor: Cursor, inventory: Inventory, first: int) -> tuple[Member, ...]:
    """All tensors of a joint block."""
    stretches = cursor.varint()
    check(stretches <= len(inventory.tensors), f"{stretches} stretches")
    tensors = []
    at = first
    for stretch in range(stretches + 1):
        if stretch > 0:
            at = tensors[-1] + 2 + cursor.varint()
        more = cursor.varint()
        check(at + more < len(inventory.tensors), f"joint block with tensor {at + more}")
        tensors += range(at, at + more + 1)
    items = [inventory.tensors[tensor] for tensor in tensors]
    check(len(items) > 1, f"{items[0].name}: a joint block of one tensor")
    check(len({item.width for item in items}) == 1, f"{items[0].name}: joined with another width")
    check(all(math.prod(item.shape) for item in items), f"{items[0].name}: joined with no elements")
    return tuple(
        Member(tensor, (0,) * len(item.shape), item.shape)
        for tensor, item in zip(tensors, items, strict=True)
    )


def separate(boxes, cuts: int) -> bool:
    """Whether cutting proves that no two boxes share an element."""
    if len(boxes) == 1:
        return True
    if cuts == MAX_CUTS:
        return False
    for d in range(len(boxes[0][0])):
        groups, reached = [], -1
        for box in sorted(boxes, key=lambda box: box[0][d]):
            if box[0][d] >= reached:
                groups.append([])
            groups[-1].append(box)
            reached = max(reached, box[0][d] + box[1][d])
        if len(groups) > 1:
            return all(separate(group, cuts + 1) for group in groups)
    return False


def parse_group(cursor: Cursor, inventory: Inventory, tensor: int, offset: int) -> Group:
    check(tensor < len(inventory.tensors), f"tensor {tensor} of {len(inventory.tensors)}")
    item = inventory.tensors[tensor]
    flags = cursor.unsigned(1)
    check(flags < 16, f"{item.name}: flags {flags}")
    if flags & JOINT:
        check(flags == JOINT, f"{item.name}: flags {flags}")
        block = parse_block(cursor, parse_joined(cursor, inventory, tensor), item, offset)
        check(block.coding != DENSE, f"{item.name}: a dense joint block")
        return Group(tensor, None, (block,))
    whole, stored = bool(flags & WHOLE), bool(flags & TENSOR_DIGEST)
    check(not flags & DIGEST_IS_BLOCKS or (whole and not stored), f"{item.name}: flags {flags}")
    count = 1 if whole else cursor.varint()
    digest = cursor.digest() if stored else None
    check(count or stored, f"{item.name}: neither blocks nor digest")
    blocks: list[Block] = []
    for _ in range(count):
        box = ((0,) * len(item.shape), item.shape) if whole else parse_box(cursor, item)
        blocks.append(parse_block(cursor, (Member(tensor, *box),), item, offset))
        offset += blocks[-1].bytes
    boxes = [(block.members[0].start, block.members[0].size) for block in blocks]
    check(whole or all(size != item.shape for _, size in boxes), f"{item.name}: a whole block spelled as cut")
    check(all(a[0] < b[0] for a, b in itertools.pairwise(boxes)), f"{item.name}: order of blocks")
    check(not boxes or separate(boxes, 0), f"{item.name}: blocks overlap")
    check(
        not (whole and stored and digest == blocks[0].after),
        f"{item.name}: digest is the block's, and stored",
    )
    if flags & DIGEST_IS_BLOCKS:
        digest = blocks[0].after
    return Group(tensor, digest, tuple(blocks))


def parse(data: bytes, inventory: Inventory) -> Table:
    cursor = Cursor(data)
    check(cursor.take(4) == b"DWBT", "not a block table")
    version = cursor.unsigned(1)
    if version != FORMAT_VERSION:
        raise Unsupported(f"block table has version {version}, this reader knows {FORMAT_VERSION}")
    entropy_bytes, entropy_hash, count = cursor.varint(), cursor.unsigned(8), cursor.varint()
    groups, tensor, offset = [], -1, 0
    for _ in range(count):
        tensor += cursor.varint() + 1
        groups.append(parse_group(cursor, inventory, tensor, offset))
        offset += sum(block.bytes for block in groups[-1].blocks)
    cursor.end()
    named = [group.tensor for group in groups] + [
        member.tensor for group in groups for block in group.blocks for member in block.members[1:]
    ]
    check(len(set(named)) == len(named), "a joined tensor has another group")
    return Table(entropy_bytes, entropy_hash, tuple(groups))
