"""Where training frameworks keep the served weights, and when they write them.

Frameworks are recognised by the qualified names of their classes, exactly, and never imported. What is not
recognised is watched like any model and optimizer: by what torch's hooks see, else by snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .._classes import class_of
from .._errors import WrongTypeError
from .._part import Part, part_of_dtensor
from .._tensors import local
from . import deepspeed, megatron
from .copies import CopySource, Piece
from .method_hook import MethodHook

__all__ = ["CopySource", "MethodHook", "Piece", "Reading", "Stepping", "module_of", "stepping_of", "unwrap"]

# Their ``module`` is the model.
_WRAPPERS = {
    "deepspeed.runtime.engine.DeepSpeedEngine",
    "deepspeed.runtime.hybrid_engine.DeepSpeedHybridEngine",
    "megatron.core.distributed.distributed_data_parallel.DistributedDataParallel",
    "megatron.core.transformer.module.Float16Module",
    "torch.nn.parallel.data_parallel.DataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
}

# Optimizers that step copies.
_COPIES: dict[str, Callable[[Any], CopySource]] = {
    "deepspeed.runtime.bf16_optimizer.BF16_Optimizer": deepspeed.Bf16,
    "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3": deepspeed.Zero3,
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer": deepspeed.Zero12,
    "megatron.core.optimizer.distrib_optimizer.DistributedOptimizer": megatron.DistributedOptimizer,
    "megatron.core.optimizer.optimizer.Float16OptimizerWithFloat16Params": megatron.Float16Optimizer,
}
_ACCELERATED = "accelerate.optimizer.AcceleratedOptimizer"
_CHAINED = "megatron.core.optimizer.optimizer.ChainedOptimizer"


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The module behind torch.compile and frameworks' wrappers, whose names are not the checkpoint's."""
    while True:
        if type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        elif class_of(model) in _WRAPPERS or isinstance(
            model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
        ):
            model = model.module  # type: ignore[assignment]
        else:
            return model


def module_of(given: Any, what: str, else_: str = "") -> torch.nn.Module:
    """``unwrap`` of what a user gave as a model; refuses what is none, and says what to give.

    ``what``: the argument. ``else_``: what else it may be.
    """
    model = unwrap(given)
    if isinstance(model, torch.nn.Module):
        return model
    raise WrongTypeError(f"{what} is {_a(given)}, not a torch.nn.Module{else_}: {_instead(given)}")


def _a(given: Any) -> str:
    if given is None or isinstance(given, type):
        return repr(given)
    return f"a {type(given).__name__}"


def _instead(given: Any) -> str:
    if isinstance(given, type):
        return "give an object of that class, the one that is in use"
    if isinstance(given, Mapping):
        return (
            "give the module whose state_dict() that is: names and tensors alone say neither what is tied "
            "nor where the weights are after the next assignment"
        )
    if isinstance(given, (str, os.PathLike)):
        return "give the module that is in memory"
    if isinstance(given, Iterable):
        return "give the module itself, not its parameters()"
    return "give the module itself"


@dataclass
class Stepping:
    """What changes the weights."""

    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    """torch's, which really step, inside lists and wrappers."""
    sources: list[CopySource] = field(default_factory=list)
    """Those around them that copy afterwards."""
    alone: list[torch.optim.Optimizer] = field(default_factory=list)
    """The optimizers that are in none of these sources, or in anything else that is no optimizer of torch."""
    foreign: list[torch.optim.Optimizer] = field(default_factory=list)
    """Those that are in something of which nothing is known."""
    in_pieces: list[torch.optim.Optimizer] = field(default_factory=list)
    """Those that are stepped several times for one step of the source around them."""
    replaced: list[torch.optim.Optimizer] = field(default_factory=list)
    """Those whose step() accelerate replaces at every step, by the one that it saw first."""


def stepping_of(given: Any) -> Stepping:
    """Refuses what is neither an optimizer nor in a list of them nor around one."""
    out = Stepping()
    _collect(given, out, out.alone)
    return out


def _collect(given: Any, out: Stepping, kind: list[torch.optim.Optimizer] | None) -> None:
    """kind: the list that the optimizers inside belong to."""
    if given is None:
        return
    if isinstance(given, (list, tuple)):
        for each in given:
            _collect(each, out, kind)
        return
    if class_of(given) == _CHAINED:
        _collect(given.chained_optimizers, out, kind)
        return
    inner: Any = getattr(given, "optimizer", None)
    if (source := _COPIES.get(class_of(given))) is not None:
        out.sources.append(source(given))
        if out.sources[-1].steps_in_pieces:
            out.in_pieces.append(inner)
        _collect(inner, out, None)
    elif hasattr(inner, "param_groups") and hasattr(inner, "step"):
        if class_of(given) == _ACCELERATED and given.scaler is not None:
            out.replaced.append(inner)
        # Around an optimizer: accelerate's and others' wrappers are torch optimizers themselves.
        _collect(inner, out, kind if isinstance(given, torch.optim.Optimizer) else out.foreign)
    elif isinstance(given, torch.optim.Optimizer):
        out.optimizers.append(given)
        if kind is not None:
            kind.append(given)
    else:
        raise WrongTypeError(
            f"optimizer is {_a(given)}, not a torch.optim.Optimizer: give the optimizer that is stepped, a "
            "list of them, or None where nothing steps the model here"
        )


class Reading:
    """Which elements of the model's tensors this rank holds, and where they are."""

    def __init__(self, sources: list[CopySource]) -> None:
        self.pieces = {id(piece.parameter): piece for source in sources for piece in source.pieces}

    def read(self, name: str, held: torch.Tensor) -> tuple[torch.Tensor, Part]:
        """This rank's elements of one of the model's objects, in the shape of their part, as they lie now."""
        tensor, part = self._read(name, held)
        if part.is_whole and part.size != part.shape:  # flat, on a single rank
            return tensor.view(part.shape), Part.whole(part.shape)
        return tensor, part

    def _read(self, name: str, held: torch.Tensor) -> tuple[torch.Tensor, Part]:
        if (piece := self.pieces.get(id(held))) is not None:
            return piece.live(), piece.part
        if deepspeed.is_partitioned(held):
            part = deepspeed.part_of(name, held)
            return deepspeed.partition(held, part.elements), part
        if local(held) is not held:
            return local(held), part_of_dtensor(name, held)
        return held, Part.whole(tuple(held.shape))
