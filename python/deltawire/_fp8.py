"""How a weight is served as FP8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._errors import make

Granularity = Literal["tensor", "channel"] | tuple[int, int]
_SCALE_DTYPES = ("F32", "BF16")


@dataclass(frozen=True)
class Fp8:
    """Serve a weight ``X`` as E4M3 codes under its own name, beside a tensor of scales: X = code · scale.

    ``granularity``: which elements share a scale. A tuple (rows, columns) for blocks of that size, cut off
    at the edges: scales [⌈out/rows⌉, ⌈in/columns⌉]; "channel", one for each output row: [out, 1]; "tensor",
    one for the matrix: [1]. Stacked experts [E, out, in] are E matrices: the shapes with E in front, and
    [E, 1, 1] for "tensor".
    ``suffix``: what is appended to X for the scales' name; None for the engines' usual one, ``_scale_inv``
    for blocks and ``_scale`` otherwise. ``scale_dtype``: "F32" or "BF16". docs/serving.md defines each bit.
    """

    granularity: Granularity = (128, 128)
    suffix: str | None = None
    scale_dtype: str = "F32"

    def __post_init__(self) -> None:
        given = self.granularity
        blocks = isinstance(given, (tuple, list)) and len(given) == 2 and all(type(n) is int for n in given)
        if not (given in ("tensor", "channel") or (blocks and min(given) > 0)):
            raise make(
                "invalid_argument",
                f"granularity={given!r} is not 'tensor', 'channel' or a tuple of two positive integers",
            )
        if blocks:
            object.__setattr__(self, "granularity", tuple(given))
        if self.suffix is not None and not self.suffix:
            raise make("invalid_argument", "suffix='' would give the scales the name of the weight")
        name = str(self.scale_dtype).removeprefix("torch.").lower()
        scale_dtype = {"float32": "F32", "f32": "F32", "bfloat16": "BF16", "bf16": "BF16"}.get(name)
        if scale_dtype is None:
            raise make(
                "invalid_argument",
                f"scale_dtype={self.scale_dtype!r} is not one of {', '.join(_SCALE_DTYPES)}",
            )
        object.__setattr__(self, "scale_dtype", scale_dtype)

    @property
    def scale_suffix(self) -> str:
        if self.suffix is not None:
            return self.suffix
        return "_scale_inv" if isinstance(self.granularity, tuple) else "_scale"

    @property
    def text(self) -> str:
        """The rule in words; part of what a run is."""
        if isinstance(self.granularity, tuple):
            sharing = f"{self.granularity[0]}x{self.granularity[1]} block"
        else:
            sharing = self.granularity
        return f"F8_E4M3 with one {self.scale_dtype} scale a {sharing} in X{self.scale_suffix}"
