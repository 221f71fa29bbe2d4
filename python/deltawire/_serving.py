"""Which dtype engines serve each tensor in."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from . import _core
from ._errors import make
from ._tensors import SERVED_NAMES, dtype_name

if TYPE_CHECKING:
    from ._model import ModelTensor

DtypeRule = torch.dtype | str | None
# Small tensors whose FP32 bits decide something: routing, state-space decay, dequantisation.
KEPT_NAMES = ("*e_score_correction_bias", "*A_log", "*scale", "*scales", "*scale_inv")


def parse_dtype(rule: DtypeRule, where: str) -> str | None:
    """The safetensors name of a dtype as users write it; None keeps each tensor's own."""
    if rule is None:
        return None
    if isinstance(rule, torch.dtype):
        name = dtype_name(rule)
    elif rule.upper() in SERVED_NAMES:
        name = rule.upper()
    else:
        dtype = getattr(torch, rule.removeprefix("torch."), None)
        name = dtype_name(dtype) if isinstance(dtype, torch.dtype) else None
    if name is None:
        raise make("invalid_argument", f"{where}: {rule!r} is not a dtype that engines can be served in")
    return name


class ServingRule:
    """``base`` (the checkpoint that engines have) decides if given; else ``dtype``, else the default rule."""

    def __init__(
        self, dtype: DtypeRule | Mapping[str, DtypeRule], base: str | None, tensors: list[ModelTensor]
    ) -> None:
        if base is not None and dtype is not None:
            raise make(
                "invalid_argument",
                "give base= or dtype=, not both: the dtypes of the base are what engines serve",
            )
        self._base: dict[str, str] | None = None
        self._rules: dict[str, str | None] = {}
        self._float = "BF16"
        if base is not None:
            self._base = {name: dtype for name, dtype, _ in _core.checkpoint_tensors(base)}
            self.text = "dtypes of the base checkpoint"
            return
        if isinstance(dtype, Mapping):
            self._rules = {name: parse_dtype(rule, f"dtype[{name!r}]") for name, rule in dtype.items()}
            for pattern in self._rules:
                if not any(_matches(pattern, entry) for entry in tensors):
                    raise make(
                        "not_found", f"dtype rule {pattern!r} matches no tensor; rules match whole names"
                    )
        elif dtype is not None:
            self._float = parse_dtype(dtype, "dtype") or self._float
        rules = [f"{pattern} as {served or 'stored'}" for pattern, served in self._rules.items()]
        self.text = "; ".join(
            [
                *rules,
                f"FP32 parameters as {self._float} except {', '.join(KEPT_NAMES)}"
                if dtype is None or self._rules
                else f"floating parameters as {self._float} except {', '.join(KEPT_NAMES)}",
                "everything else as stored",
            ]
        )
        self._all_floats = dtype is not None and not self._rules

    def served(self, entry: ModelTensor) -> str:
        stored = dtype_name(entry.tensor.dtype)
        if stored is None:
            raise make("unsupported", f"tensor {entry.name}: deltawire does not carry {entry.tensor.dtype}")
        if self._base is not None:
            names = [name for name in (entry.name, *entry.aliases) if name in self._base]
            # A missing one is reported by the core, with all others.
            return self._base[names[0]] if names else stored
        for pattern, served in self._rules.items():
            if _matches(pattern, entry):
                return served or stored
        casts = ("F32", "F16", "BF16") if self._all_floats else ("F32",)
        if not entry.is_parameter or stored not in casts:
            return stored
        if any(_matches(pattern, entry) for pattern in KEPT_NAMES):
            return stored
        return self._float


def _matches(pattern: str, entry: ModelTensor) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (entry.name, *entry.aliases))
