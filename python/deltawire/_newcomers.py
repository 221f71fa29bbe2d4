"""Parameters that optimizers were given after they began to be watched (``add_param_group``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._detector import Choice, Steppers
from ._model import ModelTensor


class Newcomers:
    """Which watched tensors an optimizer steps through parameters that it did not have at the start.

    They may be the model's own objects, which nobody stepped before, or views of tensors that are watched.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        entries: Sequence[ModelTensor],
        choices: Sequence[Choice],
    ) -> None:
        self._optimizers = optimizers
        self._entries = entries
        self._choices = choices
        # Kept alive: an id that was free again could be a newcomer's.
        self._known = {id(p): p for p in _parameters(optimizers)}

    def touched(self) -> dict[int, str]:
        """By index: how the optimizers came to step the tensor."""
        if all(id(p) in self._known for p in _parameters(self._optimizers)):
            return {}
        steppers = Steppers.of(self._optimizers, but=self._known)
        out = {}
        for i, entry in enumerate(self._entries):
            for stepper in steppers.on(entry.tensor):
                kind = type(stepper.optimizer).__name__
                what = "it" if stepper.parameter is entry.held else "a view of it"
                out[i] = f"the {kind} was given {what} later, in parameter group {stepper.index}"
        return out

    def invisible(self) -> dict[int, str]:
        """Those of them whose detector does not see what these steps change."""
        return {i: how for i, how in self.touched().items() if self._choices[i].method != "snapshot"}


def _parameters(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
