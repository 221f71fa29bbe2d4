"""Which tensors are watched by copy-back, and which only a snapshot can watch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from .._classes import class_of
from .._detector import NO_MASTER, Choice, choose
from .._errors import make
from .._rules import AdamFamily, Rules
from .._tensors import dtype_name, local
from . import Stepping

if TYPE_CHECKING:
    from .._model import ModelTensor


def choose_detectors(
    tensors: Sequence[ModelTensor],
    served: Sequence[str],
    stepping: Stepping,
    wanted: str,
    adam_family: AdamFamily | Sequence[AdamFamily],
) -> list[Choice]:
    """What torch's optimizers allow, corrected by what frameworks do around them.

    ``served``: the tensors' dtypes for engines. ``wanted``: "auto", or a detector that must do for all
    tensors that are stepped.
    """
    of_torch = "auto" if wanted == "copy_back" else wanted
    choices = choose(tensors, served, stepping.optimizers, of_torch, Rules(adam_family))
    return _with_copies(tensors, served, choices, stepping, wanted)


def _with_copies(
    tensors: Sequence[ModelTensor],
    served: Sequence[str],
    choices: Sequence[Choice],
    stepping: Stepping,
    wanted: str,
) -> list[Choice]:
    found = {
        id(piece.parameter): (piece, source.reason) for source in stepping.sources for piece in source.pieces
    }
    unknown = stepping.alone + stepping.foreign
    strange = [optimizer for optimizer in unknown if _steps_strangers(optimizer, tensors)]
    out = []
    for entry, served_dtype, choice in zip(tensors, served, choices, strict=True):
        piece, reason = found.get(id(entry.held), (None, ""))
        if not entry.tensor.numel():
            pass
        elif piece is not None and piece.master is not None:
            stored = dtype_name(entry.tensor.dtype)
            if stored == served_dtype:
                choice = Choice("copy_back", reason)
            else:  # the core would have to know both casts
                choice = Choice("snapshot", f"{reason}, and {stored} is served as {served_dtype}")
        elif piece is not None and piece.refusal:
            choice = Choice("snapshot", piece.refusal)
        elif any(held is replaced for held, _ in choice.captured for replaced in stepping.replaced):
            choice = Choice("snapshot", "accelerate replaces its step() at every step with a GradScaler")
        elif strange and choice.method == "fence" and entry.is_parameter and entry.held.requires_grad:
            choice = Choice(
                "snapshot",
                f"{class_of(strange[0])} steps tensors that are not the model's, perhaps copies of it",
            )
        out.append(_as_wanted(entry, choice, wanted))
    return out


def _as_wanted(entry: ModelTensor, choice: Choice, wanted: str) -> Choice:
    if wanted in ("auto", choice.method) or choice.method == "fence":
        return choice
    if wanted == "snapshot":
        return replace(choice, method="snapshot", reason="asked for")
    # Why inversion or capture was chosen is not why it can't be copy-back.
    why = NO_MASTER if choice.method in ("inversion", "capture") else choice.reason
    raise make(
        "unsupported",
        f"tensor {entry.name} can't use {wanted}: {why}. With detector='auto' it is watched by "
        f"{choice.method}",
    )


def _steps_strangers(optimizer: torch.optim.Optimizer, tensors: Sequence[ModelTensor]) -> bool:
    """Whether it holds parameters that lie in the memory of none of the model's tensors."""
    known = {entry.tensor.untyped_storage().data_ptr() for entry in tensors}
    return any(
        mine.numel() and mine.untyped_storage().data_ptr() not in known
        for group in optimizer.param_groups
        for mine in map(local, group["params"])
    )
