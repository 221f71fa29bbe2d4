"""What would watch each tensor, and what that would cost: without a publisher."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ._opening import Opening
from ._quantize import REASON, STAGED_BYTES, ScalePlan
from ._rules import AdamFamily
from ._serving import DtypeRule
from ._tensors import dtype_size


@dataclass(frozen=True)
class TensorDetector:
    """How one tensor would be watched."""

    tensor: str
    detector: str
    """copy_back, inversion, capture, snapshot or fence."""
    reason: str
    elements: int
    bytes_a_parameter: float
    """Held between steps and publishes, beside 8 B for each element that is going to be sent. What is held
    during a call does not count: by capture, the served bits of the largest parameter."""


@dataclass(frozen=True)
class Explanation:
    """The rows of a table, which ``str()`` lays out: tensors of one detector and reason on one line."""

    tensors: tuple[TensorDetector, ...]

    def __iter__(self) -> Iterator[TensorDetector]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def bytes(self) -> int:
        """Held for all of them."""
        return round(sum(row.elements * row.bytes_a_parameter for row in self.tensors))

    def __str__(self) -> str:
        groups: dict[tuple[str, str], list[TensorDetector]] = {}
        for row in self.tensors:
            groups.setdefault((row.detector, row.reason), []).append(row)
        lines = [f"{'detector':<10} {'tensors':>7} {'elements':>14} {'B/parameter':>11}  reason"]
        for (detector, reason), rows in sorted(groups.items()):
            elements = sum(row.elements for row in rows)
            held = sum(row.elements * row.bytes_a_parameter for row in rows) / max(1, elements)
            names = rows[0].tensor if len(rows) == 1 else f"{rows[0].tensor} ... {rows[-1].tensor}"
            lines.append(f"{detector:<10} {len(rows):>7} {elements:>14,} {held:>11.3g}  {reason}: {names}")
        return "\n".join(lines)


def explain(
    model: torch.nn.Module,
    optimizer: Any,
    detector: str = "auto",
    *,
    dtype: DtypeRule | Mapping[str, DtypeRule] = None,
    base: str | os.PathLike[str] | None = None,
    adam_family: AdamFamily | Sequence[AdamFamily] = (),
) -> Explanation:
    """Which detector a Publisher with these arguments would use for each tensor, why, and at what memory.

    Raises what it would raise about them. Nothing is published, attached or kept.
    """
    opening = Opening(
        model,
        optimizer,
        detector=detector,
        adam_family=adam_family,
        dtype=dtype,
        base=os.fspath(base) if base is not None else None,
    )
    rows = {
        entry.name: TensorDetector(
            entry.name,
            choice.method,
            choice.reason,
            entry.tensor.numel(),
            float(dtype_size(name)) if choice.method == "snapshot" else 0.0,
        )
        for entry, name, choice in zip(opening.plain, opening.served, opening.choices, strict=True)
    }
    for entry in opening.tensors:
        if (plan := opening.rule.fp8.get(entry.name)) is not None:
            rows[entry.name] = _quantized(entry.name, entry.tensor.numel(), plan, detector)
    return Explanation(tuple(rows[entry.name] for entry in opening.tensors))


def _quantized(name: str, elements: int, plan: ScalePlan, detector: str) -> TensorDetector:
    """Codes and scales are always held, for they are what is served; a snapshot holds them twice."""
    staged = detector != "snapshot" and elements <= STAGED_BYTES
    scales = math.prod(plan.scale_shape) * plan.scale_dtype.itemsize
    once = 1 + scales / max(1, elements)
    return TensorDetector(
        name, "copy_back" if staged else "snapshot", REASON, elements, once if staged else 2 * once
    )
