"""Optimizers that step FP32 copies of the weights and then cast these into the model.

Until that cast the model holds the old served bits: comparing there is exact, whatever the update rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .._part import Part
from .method_hook import MethodHook


@dataclass(frozen=True)
class Piece:
    """What one rank owns of one parameter of the model."""

    parameter: torch.Tensor
    """The model's object."""
    part: Part
    live: Callable[[], torch.Tensor]
    """The served elements, where the framework keeps them now. Shape: part.size."""
    master: Callable[[], torch.Tensor] | None = None
    """What is about to be cast into them, as many elements; None where an optimizer steps the live ones."""
    refusal: str = ""
    """Why they are watched by snapshot, whoever steps them; empty if something better may do."""


BeforeCopy = Callable[[Sequence[Piece]], None]


class CopySource(Protocol):
    @property
    def pieces(self) -> Sequence[Piece]: ...

    @property
    def reason(self) -> str:
        """Why its pieces with a master are watched by copy-back."""

    @property
    def steps_in_pieces(self) -> bool:
        """Whether one step of it is several of the optimizer inside."""

    def attach(self, before_copy: BeforeCopy, after_step: Callable[[], None]) -> list[MethodHook]:
        """before_copy: called with the pieces that are about to be copied, after they were stepped.

        after_step: called after each step that copied, if it steps in pieces.
        """


def elements_of(
    parameter: torch.Tensor,
    start: int,
    stop: int,
    master: Callable[[], torch.Tensor] | None = None,
    refusal: str = "",
) -> Piece:
    """Elements [start, stop) of a parameter that every rank holds."""
    return Piece(
        parameter,
        Part.range(tuple(parameter.shape), start, stop),
        lambda: parameter.detach().view(-1)[start:stop],
        master,
        refusal,
    )
