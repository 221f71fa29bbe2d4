"""Which elements of a tensor one rank holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ._errors import make


@dataclass(frozen=True)
class Part:
    """A box of a tensor, or a range of its elements in row-major order.

    A range has one number in ``start`` and in ``size``, whatever the tensor's shape.
    """

    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: tuple[int, ...]
    """Where the part's first element is in the whole tensor."""
    size: tuple[int, ...]
    """Of the part, along the axes of ``start``."""

    @staticmethod
    def whole(shape: tuple[int, ...]) -> Part:
        return Part(tuple(shape), (0,) * len(shape), tuple(shape))

    @staticmethod
    def range(shape: tuple[int, ...], start: int, stop: int) -> Part:
        return Part(tuple(shape), (start,), (stop - start,))

    @property
    def elements(self) -> int:
        return math.prod(self.size)

    @property
    def is_whole(self) -> bool:
        return self.elements == math.prod(self.shape)

    def in_whole(self, positions: np.ndarray) -> np.ndarray:
        """Positions in the part as positions in the whole tensor; both row-major, uint64, shape (n,)."""
        if len(self.start) == 1:
            return positions.astype(np.uint64) + np.uint64(self.start[0])
        if not self.start:
            return positions.astype(np.uint64)
        axes = np.unravel_index(positions.astype(np.int64), self.size)
        moved = tuple(axis + start for axis, start in zip(axes, self.start, strict=True))
        return np.ravel_multi_index(moved, self.shape).astype(np.uint64)


def part_of_dtensor(name: str, tensor: Any) -> Part:
    """Of a torch DTensor: what its placements say, checked against what is there."""
    coordinate = tensor.device_mesh.get_coordinate()
    shape = tuple(tensor.shape)
    if coordinate is None:  # this rank is not in the tensor's mesh
        return Part(shape, (0,) * len(shape), (0,) * len(shape))
    start, size = [0] * len(shape), list(shape)
    for mesh_axis in _order(name, tensor.placements):
        axis = tensor.placements[mesh_axis].dim
        ranks = tensor.device_mesh.size(mesh_axis)
        # As torch.chunk cuts: equal pieces rounded up, the last ones shorter or empty.
        piece = -(-size[axis] // ranks)
        before = min(coordinate[mesh_axis] * piece, size[axis])
        start[axis] += before
        size[axis] = min(piece, size[axis] - before)
    found = tuple(_shape_of_local(tensor))
    if found != tuple(size):
        raise make(
            "unsupported",
            f"tensor {name}: this rank holds shape {list(found)} of {list(shape)}, expected {size} from "
            f"placements {tensor.placements} at {list(coordinate)} of {tensor.device_mesh}",
        )
    return Part(shape, tuple(start), tuple(size))


def _order(name: str, placements: tuple[Any, ...]) -> list[int]:
    """The mesh axes that shard, in the order in which they cut the tensor."""
    plain, strided = [], []
    for mesh_axis, placement in enumerate(placements):
        if type(placement).__name__ == "_StridedShard":
            # FSDP over tensor parallelism on one axis: it comes first in the mesh and cuts last.
            strided.append(mesh_axis)
        elif placement.is_shard():
            plain.append(mesh_axis)
        elif not placement.is_replicate():
            raise make(
                "unsupported",
                f"tensor {name} is {placement} over its mesh: no rank holds its value; reduce it first",
            )
    if len({placements[mesh_axis].dim for mesh_axis in strided}) < len(strided):
        raise make(
            "unsupported", f"tensor {name} has placements {placements}; one strided shard an axis is known"
        )
    return plain + strided


def _shape_of_local(tensor: Any) -> torch.Size:
    with torch.no_grad():
        local: torch.Tensor = tensor.to_local()
    return local.shape
