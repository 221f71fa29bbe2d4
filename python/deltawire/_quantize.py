"""Weights that are quantised on the trainer: what engines hold of them is kept here and compared.

docs/serving.md defines each bit; tests/python/test_serving_fp8.py has an independent implementation of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ._detector import Choice
from ._fp8 import Fp8
from ._model import ModelTensor
from ._tensors import Views, dtype_name

if TYPE_CHECKING:
    from . import _core

BLOCK = (128, 128)  # of block-quantised checkpoints
E4M3_MAX = 448.0
E4M3_NAN = 0x7F
SMALLEST_SCALE = 2.0**-126  # the smallest normal F32: engines may flush subnormals, and 0 is no scale
TILE_ELEMENTS = 1 << 20  # temporaries take at most 16 B an element of a tile
STAGED_BYTES = 48 << 20  # with those of a tile 64 MiB
REASON = "quantised on the trainer, compared with the served codes"


_SCALE_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class ScalePlan:
    """How one weight is served."""

    scale_name: str
    cell: tuple[int, int, int]
    """Matrices, rows and columns that share a scale; at the edges a cell is cut off."""
    scale_shape: tuple[int, ...]
    """As engines hold it; the same elements as one for each cell, in row-major order."""
    scale_dtype: torch.dtype


def plan_of(name: str, shape: tuple[int, ...], rule: Fp8) -> ScalePlan:
    """How a weight [out, in] or [E, out, in], none of them 0, is served by a rule."""
    stack, rows, columns = _as_stack(shape)
    if rule.granularity == "tensor":
        cell = (1, rows, columns)
        scale_shape: tuple[int, ...] = (1,) if len(shape) == 2 else (stack, 1, 1)
    elif rule.granularity == "channel":
        cell = (1, 1, columns)
        scale_shape = (*shape[:-1], 1)
    else:
        cell = (1, *rule.granularity)
        scale_shape = (*shape[:-2], *_blocks(shape, rule.granularity))
    return ScalePlan(name + rule.scale_suffix, cell, scale_shape, _SCALE_DTYPES[rule.scale_dtype])


def plan_of_scales(
    shape: tuple[int, ...], scale_name: str, scale_shape: tuple[int, ...], scale_dtype: str
) -> tuple[ScalePlan, str] | None:
    """How a checkpoint serves a weight, by its scales, and what shares one; None if they fit no rule.

    Where two rules fit (a matrix of one block), they mean the same.
    """
    stack, rows, columns = _as_stack(shape)
    lead = shape[:-2]
    cell, shared_by = {
        **dict.fromkeys([(), (1,)], ((stack, rows, columns), "tensor")),
        **dict.fromkeys([lead, (*lead, 1, 1)] if lead else [(1, 1)], ((1, rows, columns), "tensor")),
        **dict.fromkeys([(*lead, rows), (*lead, rows, 1)], ((1, 1, columns), "channel")),
        (*lead, *_blocks(shape, BLOCK)): ((1, *BLOCK), f"{BLOCK[0]}x{BLOCK[1]} block"),
    }.get(scale_shape, (None, ""))
    if cell is None:
        return None
    return ScalePlan(scale_name, cell, scale_shape, _SCALE_DTYPES[scale_dtype]), shared_by


def _as_stack(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return (1, *shape) if len(shape) == 2 else shape  # type: ignore[return-value]


def _blocks(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int]:
    return math.ceil(shape[-2] / block[0]), math.ceil(shape[-1] / block[1])


class QuantizedWeight:
    """One weight, and the codes and scales that are served of it. The weight's layout is free."""

    @torch.inference_mode(False)  # what is made inside of it can't be written later outside
    def __init__(self, weight: ModelTensor, plan: ScalePlan) -> None:
        self.weight = weight
        self.plan = plan
        like = weight.tensor
        self.codes = torch.zeros(like.shape, dtype=torch.float8_e4m3fn, device=like.device)
        self.scales = torch.ones(plan.scale_shape, dtype=plan.scale_dtype, device=like.device)

    @property
    def memory_bytes(self) -> int:
        return self.codes.numel() + self.scales.numel() * self.scales.element_size()

    @property
    def can_be_staged(self) -> bool:
        """Whether new codes may be held beside the old ones for a moment."""
        return self.codes.numel() <= STAGED_BYTES

    @property
    def cast(self) -> str:
        """How the weight becomes codes and scales; what means the same reads the same."""
        shape = _as_stack(tuple(self.codes.shape))
        extents = "x".join(str(min(n, c)) for n, c in zip(shape, self.plan.cell, strict=True))
        return f"{dtype_name(self.weight.tensor.dtype)}->F8_E4M3, amax/448 a {extents}"

    @torch.no_grad()
    @torch.inference_mode(False)
    def quantize(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Writes the present weight's codes and scales there. Temporaries of one tile."""
        live = self.weight.tensor.detach()
        weight = live.reshape(_as_stack(tuple(live.shape)))
        codes = codes.view(weight.shape)
        tiles = list(_tiles(tuple(weight.shape), self.plan.cell))
        scratch = _Scratch(weight.device, max(tile.elements for tile in tiles))
        amax = torch.zeros(
            [math.ceil(n / c) for n, c in zip(weight.shape, self.plan.cell, strict=True)],
            dtype=torch.float32,
            device=weight.device,
        )
        for tile in tiles:
            cells = tile.of_cells(amax)
            torch.maximum(cells, _tile_amax(scratch.load(weight, tile), scratch, tile), out=cells)
        scales.copy_(_scales(amax).view(scales.shape))
        # The scales that engines multiply by, with what their dtype has lost.
        divisors = scales.to(torch.float32).view(amax.shape)
        for tile in tiles:
            x = scratch.load(weight, tile)
            tile.of(codes).copy_(_tile_codes(x, tile.of_cells(divisors), scratch, tile))


@dataclass(frozen=True)
class _Band:
    """A range of one dimension that lies in one cell or consists of equal ones."""

    start: int
    stop: int
    first_cell: int
    cells: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class _Tile:
    """A box of a stack, in one cell or of equal ones in every dimension."""

    bands: tuple[_Band, _Band, _Band]

    @property
    def shape(self) -> list[int]:
        return [band.size for band in self.bands]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def of(self, stack: torch.Tensor) -> torch.Tensor:
        a, b, c = self.bands
        return stack[a.start : a.stop, b.start : b.stop, c.start : c.stop]

    def of_cells(self, grid: torch.Tensor) -> torch.Tensor:
        a, b, c = ((band.first_cell, band.first_cell + band.cells) for band in self.bands)
        return grid[a[0] : a[1], b[0] : b[1], c[0] : c[1]]

    @property
    def split(self) -> list[int]:
        """Shape with two dimensions for each: cells, elements of a cell."""
        return [n for band in self.bands for n in (band.cells, band.size // band.cells)]


def _bands(size: int, cell: int, limit: int) -> Iterator[_Band]:
    """Cuts a dimension so that no band is longer than limit."""
    if cell > limit:
        for start in range(0, size, cell):
            end = min(start + cell, size)
            for at in range(start, end, limit):
                yield _Band(at, min(at + limit, end), start // cell, 1)
        return
    whole = size - size % cell
    step = limit - limit % cell
    for start in range(0, whole, step):
        stop = min(start + step, whole)
        yield _Band(start, stop, start // cell, (stop - start) // cell)
    if whole < size:
        yield _Band(whole, size, whole // cell, 1)


def _tiles(shape: tuple[int, ...], cell: tuple[int, int, int]) -> Iterator[_Tile]:
    # Room for 128 rows: with blocks of that height a cell then lies in one tile.
    column_limit = min(shape[2], max(1, TILE_ELEMENTS // 128))
    row_limit = max(1, TILE_ELEMENTS // column_limit)
    for matrix in range(shape[0]):
        first = _Band(matrix, matrix + 1, matrix // cell[0], 1)
        for rows in _bands(shape[1], cell[1], row_limit):
            for columns in _bands(shape[2], cell[2], column_limit):
                yield _Tile((first, rows, columns))


class _Scratch:
    """Two F32 tiles that are used again and again."""

    def __init__(self, device: torch.device, elements: int) -> None:
        self._x = torch.empty(elements, dtype=torch.float32, device=device)
        self._work = torch.empty(elements, dtype=torch.float32, device=device)

    def load(self, weight: torch.Tensor, tile: _Tile) -> torch.Tensor:
        """The tile in F32; exact for the dtypes that may be quantised. Valid until the next load."""
        return self._x[: tile.elements].view(tile.shape).copy_(tile.of(weight))

    def work(self, tile: _Tile) -> torch.Tensor:
        return self._work[: tile.elements].view(tile.shape)


def _tile_amax(x: torch.Tensor, scratch: _Scratch, tile: _Tile) -> torch.Tensor:
    """Largest finite magnitude in each of the tile's cells; 0 where there is none."""
    magnitudes = torch.abs(x, out=scratch.work(tile)).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return magnitudes.view(tile.split).amax(dim=(1, 3, 5))


def _scales(amax: torch.Tensor) -> torch.Tensor:
    # A tensor as the divisor: by a number, CUDA multiplies with its reciprocal, and bits differ.
    scales = torch.div(amax, torch.full_like(amax, E4M3_MAX)).clamp_(min=SMALLEST_SCALE)
    return scales.masked_fill_(amax == 0, 1.0)


def _tile_codes(x: torch.Tensor, scales: torch.Tensor, scratch: _Scratch, tile: _Tile) -> torch.Tensor:
    quotients = scratch.work(tile)
    split = tile.split
    divisors = scales.reshape(split[0], 1, split[2], 1, split[4], 1)
    torch.div(x.view(split), divisors, out=quotients.view(split))
    # Before the cast: some versions of torch turn what is beyond the largest code into NaN.
    codes = quotients.clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    # E4M3 has no infinity, and the sign of NaN would depend on the device.
    codes.view(torch.uint8).masked_fill_(torch.isfinite(x).logical_not_(), E4M3_NAN)
    return codes


class QuantizedWeights:
    """All weights that a publisher quantises.

    ``others``: the tensors that are served from their own memory. ``entries``: those that are served in place
    of the rest, codes and scales of each weight in turn; the core knows them by their index in
    ``others + entries``. ``torch_ops``: as for Views.
    """

    def __init__(
        self, tensors: list[ModelTensor], plans: Mapping[str, ScalePlan], detector: str, torch_ops: bool
    ) -> None:
        self.others = [entry for entry in tensors if entry.name not in plans]
        self._weights = [
            QuantizedWeight(entry, plans[entry.name]) for entry in tensors if entry.name in plans
        ]
        self._staged = [detector != "snapshot" and each.can_be_staged for each in self._weights]
        self._torch_ops = torch_ops
        self.entries: list[ModelTensor] = []
        for each in self._weights:
            self.entries.append(ModelTensor(each.weight.name, each.codes, False))
            self.entries.append(ModelTensor(each.plan.scale_name, each.scales, False))
        for each in self._weights:
            each.quantize(each.codes, each.scales)

    @property
    def served(self) -> list[str]:
        """Dtypes of the entries."""
        names = {torch.float8_e4m3fn: "F8_E4M3"} | {dtype: name for name, dtype in _SCALE_DTYPES.items()}
        return [names[entry.tensor.dtype] for entry in self.entries]

    @property
    def choices(self) -> list[Choice]:
        """How the entries are watched: always by comparing, without a copy wherever they can be staged."""
        methods = ("copy_back" if staged else "snapshot" for staged in self._staged)
        return [choice for method in methods for choice in [Choice(method, REASON)] * 2]

    @property
    def casts(self) -> list[tuple[str, str]]:
        """For each entry its name and, in words, how it comes from the weight; part of what a run is."""
        return [
            (name, each.cast) for each in self._weights for name in (each.weight.name, each.plan.scale_name)
        ]

    @torch.inference_mode(False)
    def refresh(self, core: _core.Publisher) -> float:
        """The entries become those of the present weights. Returns the seconds that it took."""
        if not self._weights:
            return 0.0
        started = time.perf_counter()
        buffers: dict[torch.device, torch.Tensor] = {}
        for i, (each, staged) in enumerate(zip(self._weights, self._staged, strict=True)):
            if not staged:
                each.quantize(each.codes, each.scales)
                continue
            if each.codes.device not in buffers:
                buffers[each.codes.device] = torch.empty(
                    max(other.codes.numel() for other in self._weights if other.can_be_staged),
                    dtype=torch.float8_e4m3fn,
                    device=each.codes.device,
                )
            codes = buffers[each.codes.device][: each.codes.numel()].view(each.codes.shape)
            scales = torch.empty_like(each.scales)
            each.quantize(codes, scales)
            views = Views(torch_ops=self._torch_ops)
            first = len(self.others) + 2 * i
            for index, live, coming in ((first, each.codes, codes), (first + 1, each.scales, scales)):
                core.copy_back(index, views.of(self.entries[index - len(self.others)].name, coming))
                live.copy_(coming)
        return time.perf_counter() - started

    @property
    def memory_bytes(self) -> int:
        return sum(weight.memory_bytes for weight in self._weights)
