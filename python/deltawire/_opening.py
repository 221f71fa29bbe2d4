"""What everything that watches a model does first: the same refusals in the same order, the same choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from . import _core
from ._detector import Choice, check_held
from ._errors import Error, make
from ._frameworks import Reading, module_of, stepping_of
from ._frameworks.choices import choose_detectors
from ._model import ModelTensor, check_saved_names, check_whole, walk
from ._rules import AdamFamily
from ._serving import DtypeRule, ServingRule
from ._tensors import dtype_name


class Opening:
    """A model and its optimizers as they are now, and what is to watch each tensor. Attaches nothing."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Any,
        *,
        detector: str,
        adam_family: AdamFamily | Sequence[AdamFamily],
        dtype: DtypeRule | Mapping[str, DtypeRule],
        base: str | None = None,
        publishes: bool = True,
    ) -> None:
        """``publishes``: whole tensors, under the names of the checkpoint; else what this rank holds."""
        self.model = module_of(model, "model")
        self.stepping = stepping_of(optimizer)
        self.reading = Reading(self.stepping.sources)
        self.tensors = walk(self.model, self.reading)
        """All of the model."""
        if publishes:
            check_saved_names(self.model)
            check_whole(self.tensors)
        if not self.tensors:
            raise make("invalid_argument", f"{type(self.model).__name__} has no parameters or buffers")
        self.rule = ServingRule(dtype, base, self.tensors)
        if not publishes and self.rule.fp8:
            raise make(
                "unsupported",
                f"tensor {next(iter(self.rule.fp8))}: only a Publisher quantises to FP8, from whole tensors",
            )
        self.plain: list[ModelTensor] = [entry for entry in self.tensors if entry.name not in self.rule.fp8]
        """Those that are not quantised."""
        self.served = [self.rule.served(entry) for entry in self.plain]
        """Their dtypes for engines."""
        for entry, served in zip(self.plain, self.served, strict=True):
            _check_cast(entry, served)
        if detector != "snapshot":
            check_held(self.tensors, self.stepping.alone)
        self.choices: list[Choice] = choose_detectors(
            self.plain, self.served, self.stepping, detector, adam_family
        )
        """Of the plain ones."""


def _check_cast(entry: ModelTensor, served: str) -> None:
    stored = dtype_name(entry.tensor.dtype)
    assert stored is not None, "the serving rule has refused it"
    try:
        _core.check_cast(stored, served)
    except Error as e:
        raise make(e.code, f"tensor {entry.name}: {e}") from None
