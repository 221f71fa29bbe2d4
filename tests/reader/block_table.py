"""docs/formats/block-table.md: which bytes say what about which box."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from codings import ABSOLUTE, CLASS, DENSE, MAX_ELEMENTS, STEP, check
from inventory import Inventory, Item
from wire import Cursor, Unsupported

WHOLE, TENSOR_DIGEST, DIGEST_IS_BLOCKS = 1, 2, 4
MAX_CUTS = 10


@dataclass(frozen=True)
class Block:
    start: tuple[int, ...]
    size: tuple[int, ...]
    coding: int
    offset: int  # in deltawire.blocks
    bytes: int
    changed: int
    uncertain: int
    hash: int
    after: str

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


def parse_block(cursor: Cursor, item: Item, whole: bool, offset: int) -> Block:
    start, size = ((0,) * len(item.shape), item.shape) if whole else parse_box(cursor, item)
    coding = cursor.unsigned(1)
    if coding not in (DENSE, ABSOLUTE, STEP, CLASS):
        raise Unsupported(f"{item.name}: coding {coding}")
    stream_bytes, changed, uncertain = cursor.varint(), cursor.varint(), cursor.varint()
    block = Block(
        start, size, coding, offset, stream_bytes, changed, uncertain, cursor.unsigned(8), cursor.digest()
    )
    check(1 <= block.elements <= MAX_ELEMENTS, f"{item.name}: block of {block.elements} elements")
    check(changed + uncertain <= block.elements, f"{item.name}: more changes than elements")
    check(
        coding != DENSE or stream_bytes == block.elements * item.width, f"{item.name}: size of a dense block"
    )
    return block


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
    check(flags < 8, f"{item.name}: flags {flags}")
    whole, stored = bool(flags & WHOLE), bool(flags & TENSOR_DIGEST)
    check(not flags & DIGEST_IS_BLOCKS or (whole and not stored), f"{item.name}: flags {flags}")
    count = 1 if whole else cursor.varint()
    digest = cursor.digest() if stored else None
    check(count or stored, f"{item.name}: neither blocks nor digest")
    blocks: list[Block] = []
    for _ in range(count):
        blocks.append(parse_block(cursor, item, whole, offset))
        offset += blocks[-1].bytes
    check(
        whole or all(block.size != item.shape for block in blocks),
        f"{item.name}: a whole block spelled as cut",
    )
    check(all(a.start < b.start for a, b in itertools.pairwise(blocks)), f"{item.name}: order of blocks")
    check(not blocks or separate([(b.start, b.size) for b in blocks], 0), f"{item.name}: blocks overlap")
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
    if version != 0:
        raise Unsupported(f"block table has version {version}, this reader knows 0")
    entropy_bytes, entropy_hash, count = cursor.varint(), cursor.unsigned(8), cursor.varint()
    groups, tensor, offset = [], -1, 0
    for _ in range(count):
        tensor += cursor.varint() + 1
        groups.append(parse_group(cursor, inventory, tensor, offset))
        offset += sum(block.bytes for block in groups[-1].blocks)
    cursor.end()
    return Table(entropy_bytes, entropy_hash, tuple(groups))
